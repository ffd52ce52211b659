// Fuzzes what it is linked with, without libFuzzer:
//
//   ./bazelw run --config=asan //weights:pickle_fuzz -- --runs=1000000
//   ./bazelw run --config=asan //weights:safetensors_fuzz -- --runs=1000000
#include <gflags/gflags.h>

#include <cstdint>
#include <iostream>

#include "weights/fuzz_driver.h"
#include "weights/testing/fuzz_checks.h"

DEFINE_int64(runs, 1000000, "Inputs to make and try.");
DEFINE_uint64(seed, 1, "Of the inputs; the same one makes the same inputs.");

int main(int argc, char** argv) {
  gflags::SetUsageMessage("tries broken inputs on a reader");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  const gpipe::FuzzResult result =
      gpipe::run_fuzz_target(FLAGS_runs, FLAGS_seed);
  const gpipe::testing::ReaderCounts counts = gpipe::testing::reader_counts();
  std::cout << result.runs << " inputs, " << result.input_bytes
            << " bytes in all, the longest " << result.longest_input
            << "; read " << counts.read << ", refused " << counts.refused
            << "\n";
}
