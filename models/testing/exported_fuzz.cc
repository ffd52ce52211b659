// Fuzzes the reader of exported programs with any bytes: the archive, the list
// of weights, the graph, and the plan of the layers.
#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "gpipe/testing/fuzz_check.h"
#include "models/exported/analysis.h"
#include "models/exported/archive.h"
#include "models/exported/plan.h"
#include "models/exported/program_reader.h"
#include "models/testing/fuzz_reader.h"

// Turns LeakSanitizer off. LibTorch's reader leaks if its constructor throws,
// and libFuzzer would look for leaks after each input.
extern "C" int __lsan_is_turned_off() { return 1; }

namespace {

using gpipe::exported::LayerPlan;
using gpipe::exported::Program;

struct Read {
  Program program;
  std::vector<LayerPlan> plans;
};

Read read(const std::string& path) {
  gpipe::exported::Archive archive(path);
  Read result;
  result.program = gpipe::exported::read_program(archive, {});
  for (const auto& each : result.program.weights) {
    gpipe::exported::read_weight(archive, each);
  }
  gpipe::exported::analyze(result.program, /*keep_random=*/true);
  if (result.program.problems.empty()) {
    result.plans = gpipe::exported::plan_layers(result.program, 4);
  }
  return result;
}

// Checks that each layer gets what an earlier one gives, and that each node
// that is not constant runs once.
void check(const Read& read) {
  const auto& plans = read.plans;
  if (plans.empty()) return;
  std::vector<int> runs(read.program.nodes.size());
  for (std::size_t k = 0; k < plans.size(); ++k) {
    if (k > 0) {
      gpipe::testing::fuzz_check(plans[k].inputs == plans[k - 1].outputs,
                                 "layers fit together");
    }
    for (const int each : plans[k].nodes) ++runs[each];
  }
  for (std::size_t k = 0; k < runs.size(); ++k) {
    gpipe::testing::fuzz_check(read.program.nodes[k].pure || runs[k] == 1,
                               "each node runs once");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string path = gpipe::testing::fuzz_file(data, size);
  gpipe::testing::fuzz_parser<c10::ValueError>(
      size, {}, [&] { return read(path); }, check);
  return 0;
}
