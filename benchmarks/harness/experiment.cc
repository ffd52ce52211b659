#include "benchmarks/harness/experiment.h"

#include <algorithm>
#include <stdexcept>

#include "benchmarks/harness/parse.h"

namespace gpipe::benchmarks {
namespace {

// Returns the names of the checkpoint modes, in the order of the enumeration.
const std::vector<std::string>& checkpoint_names() {
  static const auto* const names = new std::vector<std::string>{
      to_string(Checkpoint::kAlways), to_string(Checkpoint::kExceptLast),
      to_string(Checkpoint::kNever)};
  return *names;
}

}  // namespace

std::vector<Experiment> select_experiments(const std::vector<Experiment>& all,
                                           const std::string& names) {
  std::vector<std::string> known;
  for (const auto& experiment : all) known.push_back(experiment.name);
  const auto wanted = split_list(names);
  for (const auto& name : wanted) {
    if (name == "all") continue;
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw std::invalid_argument("--experiment: there is no '" + name +
                                  "'; there are " + join(known, ", ") +
                                  " and all");
    }
  }
  if (wanted.empty()) {
    throw std::invalid_argument("--experiment: name one of " +
                                join(known, ", ") + ", or all");
  }
  if (std::find(wanted.begin(), wanted.end(), "all") != wanted.end()) {
    return all;
  }
  std::vector<Experiment> selected;
  for (const auto& experiment : all) {
    if (std::find(wanted.begin(), wanted.end(), experiment.name) !=
        wanted.end()) {
      selected.push_back(experiment);
    }
  }
  return selected;
}

Checkpoint parse_checkpoint(const std::string& text) {
  return static_cast<Checkpoint>(
      parse_choice("checkpoint", text, checkpoint_names()));
}

}  // namespace gpipe::benchmarks
