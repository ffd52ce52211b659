// Prints published figures of pipeline schedules beside those of gpipe's
// simulator, with the deviations and their reasons (docs/results/schedules.md).
//
//   ./bazelw run //benchmarks:published
#include "benchmarks/published.h"

#include <exception>
#include <iostream>

int main() {
  using namespace gpipe::benchmarks;
  try {
    std::cout << zero_bubble_formulas() << zero_bubble_rates()
              << dual_pipe_formulas() << controllable_memory() << gpipe_tpus()
              << gpipe_gpus() << torchtitan();
  } catch (const std::exception& error) {
    std::cerr << "published: " << error.what() << "\n";
    return 2;
  }
}
