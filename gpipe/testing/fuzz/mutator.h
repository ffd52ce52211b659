// Makes broken inputs for parsers out of valid ones, for compilers without
// libFuzzer. The same seed gives the same inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace gpipe::testing {

// The inputs that a Mutator starts from, and the words that it inserts.
struct FuzzCorpus {
  std::vector<std::string> seeds;  // at least one
  std::vector<std::string> words;  // words of the format; may be empty
};

// A generator of random changes of inputs. Not thread-safe.
class Mutator {
 public:
  Mutator(FuzzCorpus corpus, uint64_t seed);

  // Returns one of the seeds, at random.
  const std::string& pick();

  // Changes `bytes` once, or twice (half as often), or three times, and so on.
  // A change is one of these:
  // - changes a bit or a byte,
  // - cuts out a range, doubles it, or copies it elsewhere,
  // - cuts off the end,
  // - overwrites or inserts random bytes, printable characters or a special
  //   number (0, -1, 2^31, ..., as binary or text),
  // - inserts a word or a part of a seed.
  //
  // The result has at most `longest` bytes.
  void change(std::string& bytes, std::size_t longest);

  // Returns a random number below `bound`, nearly uniform. Returns 0 if `bound`
  // is 0.
  uint64_t below(uint64_t bound);

 private:
  void change_once(std::string& bytes);
  std::string number();

  const FuzzCorpus corpus_;
  std::mt19937_64 random_;
};

}  // namespace gpipe::testing
