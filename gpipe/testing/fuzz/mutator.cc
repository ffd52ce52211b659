#include "gpipe/testing/fuzz/mutator.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpipe::testing {

Mutator::Mutator(FuzzCorpus corpus, uint64_t seed)
    : corpus_(std::move(corpus)), random_(seed) {}

uint64_t Mutator::below(uint64_t bound) {
  return bound == 0 ? 0 : random_() % bound;
}

const std::string& Mutator::pick() {
  return corpus_.seeds[below(corpus_.seeds.size())];
}

// Returns a number: little- or big-endian with 1, 2, 4 or 8 bytes, or in
// decimal.
std::string Mutator::number() {
  static constexpr uint64_t kInteresting[] = {
      0,          1,          2,          0x7f,
      0x80,       0xff,       0x7fff,     0xffff,
      0x7fffffff, 0x80000000, 0xffffffff, 0x7fffffffffffffff,
      1ull << 32, 1ull << 62, 1ull << 63, 0xffffffffffffffff};
  const uint64_t value =
      below(4) == 0 ? below(300) : kInteresting[below(std::size(kInteresting))];
  if (below(3) == 0) {
    return (below(4) == 0 ? "-" : "") + std::to_string(value);
  }
  std::string bytes;
  const uint64_t width = uint64_t{1} << below(4);
  for (uint64_t k = 0; k < width; ++k) {
    bytes.push_back(static_cast<char>(value >> (8 * k)));
  }
  if (below(4) == 0) std::reverse(bytes.begin(), bytes.end());
  return bytes;
}

void Mutator::change_once(std::string& bytes) {
  const std::size_t at = below(bytes.size() + 1);
  const std::size_t left = bytes.size() - at;
  const auto printable = [&] { return static_cast<char>(' ' + below(95)); };
  switch (below(13)) {
    case 0:
      if (left > 0) bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(8));
      return;
    case 1:
      if (left > 0) bytes[at] = static_cast<char>(random_());
      return;
    case 2:
      if (left > 0) bytes[at] = printable();
      return;
    case 3:
      bytes.erase(at, below(std::min<std::size_t>(left, 32) + 1));
      return;
    case 4:
      bytes.resize(at);
      return;
    case 5: {
      const std::string range = bytes.substr(at, below(64) + 1);
      bytes.insert(at, range);
      return;
    }
    case 6: {
      const std::string range = bytes.substr(at, below(64) + 1);
      bytes.replace(below(bytes.size() + 1), range.size(), range);
      return;
    }
    case 7:
      for (uint64_t k = below(8) + 1; k > 0; --k) {
        bytes.insert(at, 1, static_cast<char>(random_()));
      }
      return;
    case 8:
      bytes.insert(at, 1, printable());
      return;
    case 9: {
      const std::string over = number();
      bytes.replace(at, over.size(), over);
      return;
    }
    case 10:
      bytes.insert(at, number());
      return;
    case 11:
      if (!corpus_.words.empty()) {
        bytes.insert(at, corpus_.words[below(corpus_.words.size())]);
        return;
      }
      [[fallthrough]];
    default: {
      const std::string& other = pick();
      const std::size_t from = below(other.size());
      bytes.insert(at, other, from, below(other.size() - from) + 1);
      return;
    }
  }
}

void Mutator::change(std::string& bytes, std::size_t longest) {
  do change_once(bytes);
  while (below(2) == 0);
  if (bytes.size() > longest) bytes.resize(longest);
}

}  // namespace gpipe::testing
