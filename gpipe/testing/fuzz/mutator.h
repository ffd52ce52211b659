// Makes inputs for parsers out of good ones that go wrong, the same ones for
// the same numbers, for compilers that have no libFuzzer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace gpipe::testing {

// What an input begins as, and what is put into it.
struct FuzzCorpus {
  std::vector<std::string> seeds;  // at least one
  std::vector<std::string> words;  // of the format; may be none
};

class Mutator {
 public:
  Mutator(FuzzCorpus corpus, uint64_t seed);

  // One of the seeds.
  const std::string& pick();

  // Changes `bytes` in one way, or in two (half as often), or three, ... Each
  // is one of: a bit or a byte changed, a range cut out, doubled, or copied to
  // elsewhere, the end cut off, random bytes, printable ones, or an interesting
  // number (0, -1, 2^31, ...; in binary or as text) put over or between what is
  // there, a word or a piece of a seed put in. The result has at most `longest`
  // bytes.
  void change(std::string& bytes, std::size_t longest);

  // Uniform enough; 0 for 0.
  uint64_t below(uint64_t bound);

 private:
  void change_once(std::string& bytes);
  std::string number();

  const FuzzCorpus corpus_;
  std::mt19937_64 random_;
};

}  // namespace gpipe::testing
