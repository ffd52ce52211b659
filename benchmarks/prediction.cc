// Compares predicted and measured steps. gpipe::balancing::plan() predicts the
// seconds. A run of the same pipeline on the meta device predicts the bytes.
//
// Each partition has one thread. The machine should have two cores: one for
// each of 2 partitions, shared by 4 partitions.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <absl/strings/str_format.h>
#include <gflags/gflags.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "balancing/balancing.h"
#include "balancing/plan.h"
#include "balancing/profile.h"
#include "benchmarks/harness/table.h"
#include "benchmarks/harness/timing.h"
#include "benchmarks/peers/peer_model.h"
#include "gpipe/base/instruments.h"
#include "gpipe/gpipe.h"
#include "gpipe/libtorch/meta_ledger.h"
#include "gpipe/meta.h"
#include "gpipe/schedule.h"
#include "models/amoebanet.h"
#include "models/exported/exported.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"

DEFINE_string(model, "",
              "A .pt2 file of a language model, as tools/export_examples.py "
              "writes: only train_step() with several schedules, for it.");
DEFINE_int64(tokens, 64, "With --model: tokens per row.");
DEFINE_bool(only_schedules, false, "Only train_step() with several schedules.");

namespace gpipe::benchmarks {
namespace {

// Of train_step() with several schedules.
constexpr int64_t kPartitions = 2, kChunks = 4;
constexpr int64_t kRows = 32;

// A model with its input.
struct StepSubject {
  std::string name;
  std::function<torch::nn::Sequential()> model;
  at::Tensor input;
};

// Returns the papers' models, small enough for a CPU: ResNet-101, AmoebaNet-D
// and U-Net, for images of 64 x 64, and a Transformer, for 64 tokens. Seeds
// LibTorch's default generator.
std::vector<StepSubject> step_subjects() {
  torch::manual_seed(0);
  const auto images = at::rand({kRows, 3, 64, 64});
  return {
      {"ResNet-101, 64 x 64", [] { return models::resnet101(10); }, images},
      {"AmoebaNet-D (6, 64), 64 x 64",
       [] { return models::amoebanetd(10, 6, 64); }, images},
      {"U-Net (2, 16), 64 x 64", [] { return models::unet(5, 2, 16); }, images},
      {"Transformer (4, 128), 64 tokens",
       [] {
         return models::transformer(models::TransformerOptions()
                                        .num_layers(4)
                                        .width(128)
                                        .feed_forward(4 * 128)
                                        .heads(4)
                                        .vocabulary(100)
                                        .sequence(64));
       },
       at::randint(100, {kRows, 64}, at::kLong)},
  };
}

// Returns a loss: the mean of the squared outputs. Ignores the target.
at::Tensor mean_square(const at::Tensor& output, const at::Tensor&) {
  return output.pow(2).mean();
}

using instruments::CountingAllocator;

void step(GPipe& pipeline, const at::Tensor& input) {
  pipeline->zero_grad();
  const at::Tensor output = pipeline->forward(input);
  output.backward(at::ones_like(output));
}

double median_seconds(const std::function<void()>& step) {
  const auto durations = interleaved_rounds<Duration>(
      7, /*warm_up=*/2, {[&] { return time_of(step); }});
  return median(wall_seconds(durations.front()));
}

// Returns the peak of a step in bytes, without the bytes held before the step.
int64_t counted_peak(GPipe& pipeline, const at::Tensor& input) {
  pipeline->zero_grad();
  const int64_t before = CountingAllocator::live_bytes();
  CountingAllocator::reset_peak();
  step(pipeline, input);
  return CountingAllocator::peak_bytes() - before;
}

// Returns the peak of a step on the meta device, in bytes.
int64_t predicted_peak(const StepSubject& subject, GPipeOptions options) {
  options.devices(std::vector<torch::Device>(options.balance().size(),
                                             torch::Device(torch::kMeta)));
  GPipe pipeline = [&] {
    const MetaGuard meta;
    return GPipe(subject.model(), options);
  }();
  // Before the ledger, since the real input is not counted either.
  const at::Tensor input = at::empty(subject.input.sizes(),
                                     subject.input.options().device(at::kMeta));
  const MetaLedger ledger;
  step(pipeline, input);
  return ledger.peak_bytes();
}

Cell error_cell(double predicted, double measured) {
  return absl::StrFormat("%+.1f %%", 100 * (predicted / measured - 1));
}

Row predict(const StepSubject& subject, int64_t partitions) {
  const torch::nn::Sequential model = subject.model();
  const auto plan = balancing::plan(
      model, subject.input, std::vector<balancing::PlanDevice>(partitions),
      balancing::PlanOptions()
          .schedules({"fill-drain"})
          .stages_per_rank({1})
          .chunks({2 * partitions})
          .checkpoints({Checkpoint::kExceptLast})
          .profile(balancing::TimeOptions().timeout(2)));
  GPipe pipeline(model, plan.options());
  const double seconds = median_seconds([&] { step(pipeline, subject.input); });
  const auto counted =
      static_cast<double>(counted_peak(pipeline, subject.input));
  const auto predicted =
      static_cast<double>(predicted_peak(subject, plan.options()));
  return {subject.name,
          {Cell(partitions), Cell(1e3 * plan.step_seconds, 1),
           Cell(1e3 * seconds, 1), error_cell(plan.step_seconds, seconds),
           Cell(predicted / (1 << 20), 2), Cell(counted / (1 << 20), 2),
           error_cell(predicted, counted)},
          {},
          ""};
}

// Profiles the model twice, cuts it by each profile, and shows how good the
// first cut is for the second profile.
Row repeat(const StepSubject& subject, int64_t partitions) {
  const torch::nn::Sequential model = subject.model();
  const at::Tensor input = subject.input.chunk(4)[0];
  const auto profile = [&] {
    return balancing::totals(balancing::profile_times(
        model, input, balancing::TimeOptions().timeout(2)));
  };
  const auto first = profile(), second = profile();
  const auto cut = balancing::balance_cost(first, partitions);
  const auto again = balancing::balance_cost(second, partitions);
  return {subject.name,
          {Cell(partitions), cut == again ? "yes" : "no",
           error_cell(balancing::bottleneck(second, cut),
                      balancing::bottleneck(second, again))},
          {},
          ""};
}

// Plans of one subject from one profile: with each of four schedules, and the
// best of all schedules.
std::vector<balancing::Plan> plans_of(const StepSubject& subject) {
  at::set_num_threads(1);
  const balancing::Profile profile =
      balancing::profile(subject.model(), subject.input.chunk(kChunks)[0],
                         balancing::TimeOptions()
                             .timeout(4)
                             .concurrent_copies(kPartitions - 1)
                             .split_backward(true));
  const auto options = balancing::PlanOptions()
                           .chunks({kChunks})
                           .checkpoints({Checkpoint::kNever})
                           .workers(kPartitions)
                           .overhead(1e-5);
  std::vector<balancing::Plan> plans;
  const auto add = [&](std::vector<std::string> schedules) {
    plans.push_back(balancing::plan(
        profile, subject.input.size(0),
        std::vector<balancing::PlanDevice>(kPartitions),
        balancing::PlanOptions(options).schedules(std::move(schedules))));
  };
  for (const char* schedule : {"fill-drain", "1f1b", "zb-h1", "zbv"}) {
    add({schedule});
  }
  add({});
  return plans;
}

// Compares train_step() with several schedules on two partitions, planned from
// one profile. Their steps take turns. The last row is the plan over all
// schedules; its last column is its measured time over that of the fastest of
// the other rows. Appends the relative errors of the predictions to `errors`.
std::vector<Row> compare_schedules(const StepSubject& subject,
                                   std::vector<double>& errors) {
  const std::vector<balancing::Plan> plans = plans_of(subject);
  at::set_num_threads(static_cast<int>(kPartitions));
  const at::Tensor target = at::zeros({subject.input.size(0)});
  std::deque<GPipe> pipelines;
  std::vector<std::function<Duration()>> steps;
  for (const balancing::Plan& plan : plans) {
    GPipe& pipeline = pipelines.emplace_back(subject.model(), plan.options());
    steps.emplace_back([&, schedule = plan.schedule()] {
      pipeline->zero_grad();
      return time_of([&] {
        pipeline->train_step(subject.input, target, mean_square, schedule);
      });
    });
  }
  const auto rounds =
      interleaved_rounds<Duration>(7, /*warm_up=*/2, std::move(steps));
  std::vector<Row> rows;
  double fastest = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < plans.size(); ++k) {
    const double seconds = median(wall_seconds(rounds[k]));
    const bool is_choice = k + 1 == plans.size();
    errors.push_back(plans[k].step_seconds / seconds - 1);
    rows.push_back(
        {subject.name,
         {plans[k].schedule_name + ", " +
              std::to_string(plans[k].stages_per_rank) +
              (is_choice ? " (plan)" : ""),
          Cell(1e3 * plans[k].step_seconds, 1), Cell(1e3 * seconds, 1),
          error_cell(plans[k].step_seconds, seconds),
          is_choice ? Cell(seconds / fastest, 3) : Cell("")},
         {},
         ""});
    fastest = std::min(fastest, seconds);
  }
  return rows;
}

Table schedules_table(const std::vector<StepSubject>& subjects) {
  Table table{"Predicted and measured train_step()", "model", {}, {}, {}};
  table.columns = {"schedule, stages per rank", "ms predicted", "measured",
                   "error", "over the best"};
  std::vector<double> errors;
  for (const StepSubject& each : subjects) {
    for (Row& row : compare_schedules(each, errors)) {
      table.rows.push_back(std::move(row));
    }
  }
  constexpr double kGoal = 0.1;
  const auto within = std::ranges::count_if(
      errors, [](double error) { return std::abs(error) <= kGoal; });
  table.notes.push_back(std::to_string(within) + " of " +
                        std::to_string(errors.size()) +
                        " predictions are within 10 %.");
  return table;
}

// Returns the language model of --model. Only its sizes are in the file; the
// tokens are random.
StepSubject exported_subject() {
  const std::filesystem::path path = FLAGS_model;
  return {
      path.filename().string(),
      [path] { return load_exported(path.string()).layers; },
      exported_peer_data(path.string(), kRows, FLAGS_tokens, /*seed=*/0).input};
}

std::vector<Table> measure() {
  if (!FLAGS_model.empty()) return {schedules_table({exported_subject()})};
  const auto subjects = step_subjects();
  if (FLAGS_only_schedules) return {schedules_table(subjects)};
  CountingAllocator::install();
  const auto rows_of = [&](Row (*row)(const StepSubject&, int64_t)) {
    std::vector<Row> rows;
    for (const int64_t partitions : {2, 4}) {
      for (const auto& each : subjects) rows.push_back(row(each, partitions));
    }
    return rows;
  };
  Table steps{"Predicted and measured steps", "model", {}, {}, {}};
  steps.columns = {"partitions",    "ms predicted", "measured",    "error",
                   "MiB predicted", "counted",      "error of MiB"};
  steps.rows = rows_of(predict);
  Table cuts{"Cuts by two profiles of the same model", "model", {}, {}, {}};
  cuts.columns = {"partitions", "same cut by a second profile",
                  "the first cut by the second profile, over its best"};
  at::set_num_threads(1);
  cuts.rows = rows_of(repeat);
  return {steps, cuts, schedules_table(subjects)};
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_table_program(
      argc, argv,
      {"prediction",
       "milliseconds and bytes of steps, as predicted and as measured, and\n"
       "whether a model is cut alike by two profiles.",
       {"", "--only_schedules", "--model=/tmp/models/llama.pt2",
        "--format=markdown"}},
      gpipe::benchmarks::measure);
}
