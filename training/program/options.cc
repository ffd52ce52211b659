#include "training/program/options.h"

#include <absl/strings/str_join.h>

#include <utility>

#include "gpipe/schedule.h"

namespace gpipe::train_program {
namespace {

std::string names_of(models::DataKind kind) {
  return absl::StrJoin(models::model_names(kind), ", ");
}

// Returns the names of the schedules that train. `any_stages`: only those that
// take any number of stages per rank.
std::string schedules(bool any_stages) {
  std::vector<std::string> names;
  for (const std::string& name : training_schedule_names()) {
    if (any_stages && fixed_stages_per_rank(name)) continue;
    names.push_back(name);
  }
  return absl::StrJoin(names, ", ");
}

std::vector<OptionRow> make_rows() {
  std::vector<OptionRow> rows;
  std::string group;
  const auto add = [&](const std::string& name, OptionScope scope,
                       const std::string& help,
                       std::function<OptionValue(Options&)> value,
                       const std::string& model = "") {
    rows.push_back({group, name, scope, help, std::move(value), model});
  };
  const auto add_sizes_of = [&](const std::string& model) {
    for (const models::ModelSize& size : models::model_sizes(model)) {
      add(
          size.flag, OptionScope::kFixed, size.help,
          [model, option = size.option](Options& options) {
            return OptionValue(&(options.sizes.at(model).*option));
          },
          model);
    }
  };
#define GROUP(title) group = title;
#define OPTION(type, name, initial, scope, help) \
  add(#name, OptionScope::scope, help,           \
      [](Options& options) { return OptionValue(&options.name); });
#define MODEL_SIZES(name) \
  for (const auto& model : models::model_names()) add_sizes_of(model);
#include "training/program/options.inc"
  return rows;
}

}  // namespace

std::map<std::string, models::ModelOptions> small_sizes() {
  std::map<std::string, models::ModelOptions> all;
  for (const std::string& name : models::model_names()) {
    models::ModelOptions& options = all[name];
    for (const models::ModelSize& size : models::model_sizes(name)) {
      options.*size.option = size.small;
    }
  }
  return all;
}

models::ModelOptions sizes_of(const Options& options) {
  const auto found = options.sizes.find(options.model);
  return found == options.sizes.end() ? models::ModelOptions() : found->second;
}

const std::vector<OptionRow>& option_rows() {
  // Not destroyed, since gflags uses the texts until the process ends.
  static const auto& rows = *new std::vector<OptionRow>(make_rows());
  return rows;
}

}  // namespace gpipe::train_program
