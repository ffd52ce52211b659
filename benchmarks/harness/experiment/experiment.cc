#include "benchmarks/harness/experiment/experiment.h"

#include <absl/strings/str_join.h>

#include <algorithm>

#include "gpipe/base/text.h"

namespace gpipe::benchmarks {

std::vector<Experiment> select_experiments(const std::vector<Experiment>& all,
                                           const std::string& names) {
  std::vector<std::string> known;
  for (const auto& experiment : all) known.push_back(experiment.name);
  const auto wanted = split_list(names);
  for (const auto& name : wanted) {
    if (name == "all") continue;
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      internal::refuse("--experiment: there is no '", name, "'; there are ",
                       absl::StrJoin(known, ", "), " and all");
    }
  }
  if (wanted.empty()) {
    internal::refuse("--experiment: name one of ", absl::StrJoin(known, ", "),
                     ", or all");
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

}  // namespace gpipe::benchmarks
