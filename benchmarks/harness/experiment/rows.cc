#include "benchmarks/harness/experiment/rows.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <tuple>

#include "gpipe/base/text.h"

namespace gpipe::benchmarks {
namespace {

int64_t batch_size_of(const std::vector<Experiment>& all,
                      const std::string& name) {
  const auto found = std::find_if(
      all.begin(), all.end(),
      [&](const Experiment& experiment) { return experiment.name == name; });
  if (found == all.end()) {
    internal::refuse("--same_batch: there is no experiment '", name,
                     "' to take it from; give --batch_size");
  }
  return found->batch_size;
}

void check_balance(const Settings& settings,
                   const std::vector<Experiment>& rows) {
  const auto& balance = settings.balance;
  const bool fits =
      balance.empty() ||
      std::any_of(rows.begin(), rows.end(), [&](const Experiment& row) {
        return row.partitions == static_cast<int64_t>(balance.size());
      });
  if (!fits) {
    internal::refuse("--balance=", absl::StrJoin(balance, ","),
                     ": no chosen experiment has ", balance.size(),
                     " partitions");
  }
}

// Returns the members that must be equal in two rows, so that the pipeline is
// the only cause of their ratio.
auto work_of(const Experiment& row) {
  return std::tie(row.batch_size, row.chunks, row.checkpoint, row.size);
}

}  // namespace

std::vector<Experiment> choose_rows(const std::vector<Experiment>& all,
                                    const std::string& base,
                                    const Settings& settings,
                                    const RowOptions& options) {
  auto rows = select_experiments(all, options.names);
  check_balance(settings, rows);
  for (auto& row : rows) {
    if (options.same_batch) {
      row.batch_size = batch_size_of(all, row.base.empty() ? base : row.base);
    }
    row = apply(settings, std::move(row));
  }
  return options.control ? with_controls(std::move(rows)) : rows;
}

std::vector<Experiment> with_controls(std::vector<Experiment> rows) {
  std::vector<Experiment> controls;
  for (const auto& row : rows) {
    if (row.partitions < 2) continue;
    const auto serves = [&row](const Experiment& other) {
      return other.partitions == 1 && work_of(other) == work_of(row);
    };
    if (std::any_of(rows.begin(), rows.end(), serves) ||
        std::any_of(controls.begin(), controls.end(), serves)) {
      continue;
    }
    Experiment& control = controls.emplace_back(row);
    control.name = "checkpoint-only (" + row.name + ")";
    control.partitions = 1;
    control.balance.clear();
    control.published.clear();
  }
  if (controls.size() == 1) controls[0].name = "checkpoint-only";
  const auto behind_plain =
      std::find_if(rows.begin(), rows.end(),
                   [](const Experiment& row) { return row.partitions > 0; });
  rows.insert(behind_plain, controls.begin(), controls.end());
  return rows;
}

}  // namespace gpipe::benchmarks
