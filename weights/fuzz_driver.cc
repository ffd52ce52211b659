#include "weights/fuzz_driver.h"

#include <algorithm>
#include <utility>

namespace gpipe {
namespace {

constexpr std::size_t kLongest = std::size_t{1} << 16;

}  // namespace

Mutator::Mutator(std::vector<std::string> seeds, uint64_t seed)
    : seeds_(std::move(seeds)), random_(seed) {}

uint64_t Mutator::below(uint64_t bound) {
  return bound == 0 ? 0 : random_() % bound;
}

// Little or big endian, of 1 to 8 bytes; or in decimal, for JSON.
std::string Mutator::number() {
  static constexpr uint64_t kInteresting[] = {
      0,          1,          2,          0x7f,
      0x80,       0xff,       0x7fff,     0xffff,
      0x7fffffff, 0x80000000, 0xffffffff, 0x7fffffffffffffff,
      1ull << 32, 1ull << 62, 1ull << 63, 0xffffffffffffffff};
  const uint64_t value =
      below(4) == 0 ? below(300) : kInteresting[below(std::size(kInteresting))];
  if (below(3) == 0) return std::to_string(value);
  std::string bytes;
  const uint64_t width = uint64_t{1} << below(4);
  for (uint64_t k = 0; k < width; ++k) {
    bytes.push_back(static_cast<char>(value >> (8 * k)));
  }
  if (below(4) == 0) std::reverse(bytes.begin(), bytes.end());
  return bytes;
}

void Mutator::change(std::string& bytes) {
  const std::size_t at = below(bytes.size() + 1);
  const std::size_t left = bytes.size() - at;
  switch (below(10)) {
    case 0:
      if (left > 0) bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(8));
      return;
    case 1:
      if (left > 0) bytes[at] = static_cast<char>(random_());
      return;
    case 2:
      bytes.erase(at, below(std::min<std::size_t>(left, 32) + 1));
      return;
    case 3:
      bytes.resize(at);
      return;
    case 4: {
      const std::string range = bytes.substr(at, below(64) + 1);
      bytes.insert(at, range);
      return;
    }
    case 5: {
      const std::string range = bytes.substr(at, below(64) + 1);
      bytes.replace(below(bytes.size() + 1), range.size(), range);
      return;
    }
    case 6:
      for (uint64_t k = below(8) + 1; k > 0; --k) {
        bytes.insert(at, 1, static_cast<char>(random_()));
      }
      return;
    case 7: {
      const std::string over = number();
      bytes.replace(at, over.size(), over);
      return;
    }
    case 8:
      bytes.insert(at, number());
      return;
    default: {
      const std::string& other = seeds_[below(seeds_.size())];
      const std::size_t from = below(other.size());
      bytes.insert(at, other, from, below(other.size() - from) + 1);
      return;
    }
  }
}

std::string Mutator::next() {
  std::string bytes = seeds_[below(seeds_.size())];
  do change(bytes);
  while (below(2) == 0);
  if (below(2) == 0) fuzz_repair(bytes);
  if (bytes.size() > kLongest) bytes.resize(kLongest);
  return bytes;
}

FuzzResult run_fuzz_target(int64_t runs, uint64_t seed) {
  FuzzResult result;
  const auto run = [&result](const std::string& bytes) {
    // A copy that ends where its memory ends, so that ASan sees a step too far.
    const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
    const auto size = static_cast<int64_t>(bytes.size());
    ++result.runs;
    result.input_bytes += size;
    result.longest_input = std::max(result.longest_input, size);
  };
  const std::vector<std::string> seeds = fuzz_seeds();
  for (const std::string& bytes : seeds) run(bytes);
  Mutator mutator(seeds, seed);
  for (int64_t k = 0; k < runs; ++k) run(mutator.next());
  return result;
}

}  // namespace gpipe
