#include "training/program/options.h"

#include <absl/algorithm/container.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>
#include <gflags/gflags.h>

#include <cstddef>
#include <sstream>
#include <utility>
#include <variant>

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

std::string value_of(const OptionRow& row, Options options) {
  std::ostringstream text;
  text.precision(17);
  std::visit([&](const auto* value) { text << std::boolalpha << *value; },
             row.value(options));
  return text.str();
}

const std::vector<OptionRow>& option_rows() {
  // Not destroyed, since gflags uses the texts until the process ends.
  static const auto& rows = *new std::vector<OptionRow>(make_rows());
  return rows;
}

// ---- Flags

namespace {

// Returns the values that gflags writes when it parses a command line.
Options& values_of_flags() {
  static auto& values = *new Options();
  return values;
}

// Defines a flag for each option. Returns true.
bool define_flags() {
  static auto& defaults = *new Options();
  for (const OptionRow& row : option_rows()) {
    std::visit(
        [&row](auto* value) {
          auto* const initial = std::get<decltype(value)>(row.value(defaults));
          gflags::FlagRegisterer(row.name.c_str(), row.help.c_str(), __FILE__,
                                 value, initial);
        },
        row.value(values_of_flags()));
  }
  return true;
}

// Runs before main(), as DEFINE_string() and so on do.
[[maybe_unused]] const bool kDefined = define_flags();

constexpr char kIntroduction[] =
    R"(train: trains a model through a pipeline.

These commands run without data, since the program generates some:
  train
  train --model=unet
  train --model=transformer

Labelled images, in one folder per class or as the files of CIFAR-10 or MNIST:
  train --model=resnet50 --data_dir=/data/cifar10 --run_dir=/runs/1 \
      --batch=128 --epochs=20 --optimizer=sgd --lr=0.1 \
      --lr_schedule=warmup:300,cosine:7500
Images with masks:
  train --model=unet --data_dir=/data/nuclei --size=128 \
      --precision=amp-bfloat16
A text:
  train --model=transformer --data_dir=/data/book.txt --clip=1 --accumulate=4
Fine-tuning of pretrained weights for other classes:
  train --model=resnet101 --data_dir=/data/flowers --weights=resnet101.pth \
      --weights_skip=fc.
A model that Python's torch.export.save wrote:
  train --model=model.pt2 --data_dir=/data/flowers
Another schedule, in four processes: two replicas with two stages each:
  launch --nproc=4 -- train --distributed --data_parallel=2 --schedule=zb-h1

With --run_dir, the same command resumes a run that has ended for any reason.
Ctrl-C (or SIGTERM) ends the run after the current step, which is saved. A
second Ctrl-C ends it at once.

Exit codes: 0 all steps are done, 1 a flag or the data is wrong, 2 the run
failed, 3 the loss or a gradient is not finite, 130 and 143 stopped by Ctrl-C or
SIGTERM.
)";

constexpr std::size_t kWidth = 80;

// Prints `text` in lines that begin with `indent`.
void print_wrapped(std::ostream& out, const std::string& text,
                   const std::string& indent) {
  std::istringstream words(text);
  std::string line = indent;
  for (std::string word; words >> word;) {
    if (line.size() + word.size() + 1 > kWidth && line != indent) {
      out << line << "\n";
      line = indent;
    }
    line += (line == indent ? "" : " ") + word;
  }
  out << line << "\n";
}

void print_flag(std::ostream& out, const OptionRow& row) {
  Options defaults;
  out << "  --" << row.name << "=";
  std::visit([&](const auto* value) { out << std::boolalpha << *value; },
             row.value(defaults));
  out << "\n";
  print_wrapped(out, row.help, "      ");
}

}  // namespace

void check_flags(const std::vector<std::string>& names) {
  for (const OptionRow& row : option_rows()) {
    const auto flag = gflags::GetCommandLineFlagInfoOrDie(row.name.c_str());
    TORCH_CHECK_VALUE(flag.is_default || absl::c_linear_search(names, row.name),
                      "--", row.name, " is a flag of training; see --help");
  }
}

void print_flags(std::ostream& out, const std::vector<std::string>& names) {
  for (const OptionRow& row : option_rows()) {
    if (absl::c_linear_search(names, row.name)) print_flag(out, row);
  }
}

void print_help(std::ostream& out) {
  out << kIntroduction;
  std::string group;
  for (const OptionRow& row : option_rows()) {
    if (row.group != group) out << "\n" << row.group << "\n";
    group = row.group;
    print_flag(out, row);
  }
}

Options options_of_flags() { return values_of_flags(); }

void check_at_least(const char* flag, int64_t value, int64_t least) {
  TORCH_CHECK_VALUE(value >= least, "--", flag, "=", value,
                    ": must be at least ", least);
}

// ---- Numbers as text

std::string exact_text(const std::vector<double>& numbers) {
  return absl::StrJoin(numbers, " ", [](std::string* text, double number) {
    absl::StrAppendFormat(text, "%.17g", number);
  });
}

std::vector<double> parse_exact(const std::string& text) {
  std::vector<double> numbers;
  for (const absl::string_view each :
       absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    TORCH_CHECK_VALUE(absl::SimpleAtod(each, &numbers.emplace_back()), "'",
                      std::string(each), "' is no number");
  }
  return numbers;
}

}  // namespace gpipe::train_program
