// Prints published figures of pipeline schedules beside those of gpipe's
// simulator, with the deviations and their reasons (docs/results/schedules.md).
//
//   ./bazelw run //benchmarks:published
#include "benchmarks/published.h"

#include <exception>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  using namespace gpipe::benchmarks;
  if (argc > 1) {
    const std::string argument = argv[1];
    const bool help = argument == "--help";
    (help ? std::cout : std::cerr)
        << "published: "
        << (help ? "" : argument + ": there are no options; it ")
        << "prints published figures of pipeline schedules beside those of "
           "gpipe's simulator\n";
    return help ? 0 : 1;
  }
  try {
    std::cout << zero_bubble_formulas() << zero_bubble_rates()
              << dual_pipe_formulas() << controllable_memory() << gpipe_tpus()
              << gpipe_gpus() << torchtitan();
  } catch (const std::exception& error) {
    std::cerr << "published: " << error.what() << "\n";
    return 2;
  }
}
