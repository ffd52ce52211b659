// Compares predicted and measured steps. gpipe::balancing::plan() predicts the
// seconds. A run of the same pipeline on the meta device predicts the bytes.
//
// Each partition has one thread. The machine should have two cores: one for
// each of 2 partitions, shared by 4 partitions.
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "balancing/balancing.h"
#include "balancing/plan.h"
#include "balancing/profile.h"
#include "benchmarks/harness/output.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/table.h"
#include "benchmarks/harness/throughput.h"
#include "benchmarks/steps/step_subjects.h"
#include "gpipe/gpipe.h"
#include "gpipe/instruments/counting_allocator.h"
#include "gpipe/meta.h"
#include "gpipe/meta/ledger.h"
#include "gpipe/schedule.h"
#include "gpipe/text/format.h"
#include "models/transformer.h"

namespace gpipe::benchmarks {
namespace {

using instruments::CountingAllocator;

void step(GPipe& pipeline, const at::Tensor& input) {
  pipeline->zero_grad();
  const at::Tensor output = pipeline->forward(input);
  output.backward(at::ones_like(output));
}

double median_seconds(const std::function<void()>& step) {
  const auto durations = interleaved_rounds<Duration>(
      {7, /*warm_up=*/2}, {[&] { return time_of(step); }});
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
  const MetaLedger ledger;
  step(pipeline, at::empty(subject.input.sizes(),
                           subject.input.options().device(at::kMeta)));
  return ledger.peak_bytes();
}

Cell error_cell(double predicted, double measured) {
  return format("%+.1f %%", 100 * (predicted / measured - 1));
}

Row predict(const StepSubject& subject, int64_t partitions) {
  const torch::nn::Sequential model = subject.model();
  const auto plan = balancing::plan(
      model, subject.input, std::vector<balancing::PlanDevice>(partitions),
      balancing::PlanOptions()
          .schedule(balancing::PlanSchedule::kFillDrain)
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

// Returns the median seconds of train_step() with a plan, on a new pipeline.
double measured_seconds(const StepSubject& subject,
                        const balancing::Plan& plan) {
  GPipe pipeline(subject.model(), plan.options());
  const Schedule schedule = plan.schedule();
  const at::Tensor target = at::zeros({subject.input.size(0)});
  return median_seconds([&] {
    pipeline->zero_grad();
    pipeline->train_step(subject.input, target, mean_square, schedule);
  });
}

// Compares train_step() with several schedules on two partitions, planned from
// one profile. The last row is the plan over all schedules; its last column is
// its measured time over that of the fastest of the other rows.
std::vector<Row> compare_schedules(const StepSubject& subject) {
  constexpr int64_t kPartitions = 2, kChunks = 4;
  at::set_num_threads(1);
  const balancing::Profile profile = balancing::profile(
      subject.model(), subject.input.chunk(kChunks)[0],
      balancing::TimeOptions().timeout(2).concurrent_copies(kPartitions - 1));
  const auto options = balancing::PlanOptions()
                           .chunks({kChunks})
                           .checkpoints({Checkpoint::kNever})
                           .workers(kPartitions)
                           .overhead(1e-5);
  std::vector<Row> rows;
  double fastest = 0;
  const auto add = [&](const balancing::PlanOptions& chosen, bool all) {
    const auto plan = balancing::plan(
        profile, subject.input.size(0),
        std::vector<balancing::PlanDevice>(kPartitions), chosen);
    at::set_num_threads(static_cast<int>(kPartitions));
    const double seconds = measured_seconds(subject, plan);
    const double ratio = all ? seconds / fastest : 0;
    if (fastest == 0 || seconds < fastest) fastest = seconds;
    rows.push_back(
        {subject.name,
         {plan.schedule_name + ", " + std::to_string(plan.stages_per_rank) +
              (all ? " (plan)" : ""),
          Cell(1e3 * plan.step_seconds, 1), Cell(1e3 * seconds, 1),
          error_cell(plan.step_seconds, seconds),
          all ? Cell(ratio, 3) : Cell("")},
         {},
         ""});
  };
  for (const char* schedule : {"fill-drain", "1f1b", "zb-h1", "zbv"}) {
    add(balancing::PlanOptions(options).schedules({schedule}), false);
  }
  add(options, true);
  return rows;
}

std::vector<Table> measure() {
  CountingAllocator::install();
  auto subjects =
      step_subjects({32, 128, models::TransformerOptions().dropout()});
  for (StepSubject& each : subjects) {
    each.name += each.input.dim() == 2 ? ", 64 tokens" : ", 64 x 64";
  }
  const auto rows_of = [&](Row (*row)(const StepSubject&, int64_t)) {
    std::vector<Row> rows;
    for (const int64_t partitions : {2, 4}) {
      for (const auto& each : subjects) rows.push_back(row(each, partitions));
    }
    return rows;
  };
  Table steps{"Predicted and measured steps", "model", {}, {}, {}};
  steps.columns = {"partitions",    "ms predicted", "measured", "error",
                   "MiB predicted", "counted",      "error"};
  steps.rows = rows_of(predict);
  Table cuts{"Cuts by two profiles of the same model", "model", {}, {}, {}};
  cuts.columns = {"partitions", "same cut by a second profile",
                  "the first cut by the second profile, over its best"};
  at::set_num_threads(1);
  cuts.rows = rows_of(repeat);
  Table schedules{"Predicted and measured train_step()", "model", {}, {}, {}};
  schedules.columns = {"schedule, stages per rank", "ms predicted", "measured",
                       "error", "over the best"};
  for (const StepSubject& each : subjects) {
    for (Row& row : compare_schedules(each)) {
      schedules.rows.push_back(std::move(row));
    }
  }
  return {steps, cuts, schedules};
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_table_program(
      argc, argv,
      {"prediction",
       "milliseconds and bytes of steps, as predicted and as measured, and\n"
       "whether a model is cut alike by two profiles.",
       {"", "--format=markdown"}},
      gpipe::benchmarks::measure);
}
