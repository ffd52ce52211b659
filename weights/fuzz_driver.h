// Runs a fuzz target with inputs that are seeds gone wrong, the same ones for
// the same numbers, for compilers that have no libFuzzer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

// libFuzzer's: clang++ -fsanitize=fuzzer with x_fuzz.cc makes a fuzzer of its
// own.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);

namespace gpipe {

// What a fuzz target's file says beside the function above: inputs without a
// mistake; and what makes a broken one good enough to get past the reader's
// first check (a length to correct), to which every second one is given.
std::vector<std::string> fuzz_seeds();
void fuzz_repair(std::string& bytes);

// Makes new inputs: one of the seeds after a change, or two (half as often), or
// three, ... Each is one of: a bit or a byte changed, a range cut out, doubled,
// or copied to elsewhere, the end cut off, random bytes or an interesting
// number (0, -1, 2^31, ...) put over or between what is there, a piece of
// another seed put in. None is longer than 64 KiB.
class Mutator {
 public:
  Mutator(std::vector<std::string> seeds, uint64_t seed);

  std::string next();

 private:
  uint64_t below(uint64_t bound);  // uniform enough; 0 for 0
  void change(std::string& bytes);
  std::string number();

  const std::vector<std::string> seeds_;
  std::mt19937_64 random_;
};

struct FuzzResult {
  int64_t runs = 0;
  int64_t input_bytes = 0;
  int64_t longest_input = 0;
};

// Calls LLVMFuzzerTestOneInput() with each seed and then with `runs` inputs.
FuzzResult run_fuzz_target(int64_t runs, uint64_t seed);

}  // namespace gpipe
