#include "training/program/reports.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "gpipe/base/instruments.h"
#include "gpipe/base/status_line.h"
#include "gpipe/base/text.h"
#include "gpipe/eval_scope.h"
#include "training/data/checksum.h"

namespace gpipe::train_program {

// ---- Progress

namespace {

constexpr std::size_t kBar = 20;

}  // namespace

std::string number_text(double value) {
  return std::isnan(value) ? "nan"
                           : absl::StrFormat("%.4g", value);  // not "-nan"
}

std::string to_text(const Progress& progress) {
  const double done = progress.steps > 0
                          ? static_cast<double>(progress.step) /
                                static_cast<double>(progress.steps)
                          : 1;
  const auto full = static_cast<std::size_t>(done * kBar);
  const auto all = static_cast<double>(progress.steps - progress.first);
  const auto made = static_cast<double>(progress.step - progress.first);
  return "[" + std::string(full, '#') + std::string(kBar - full, '.') +
         absl::StrFormat(
             "] step %ld/%ld | epoch %.2f | loss %.4g | %.1f %s/s | ",
             progress.step, progress.steps, progress.epoch, progress.loss,
             progress.rows_per_second, progress.rows_name.c_str()) +
         clock_text(progress.seconds, made / std::max(all, 1.0));
}

// ---- Evaluations

namespace {

// Returns a checksum of the buffers of this process.
uint32_t checksum(const torch::nn::Module& module) {
  uint32_t sum = 0;
  for (const at::Tensor& buffer : module.buffers()) {
    sum = data::checksum_of(buffer, sum);
  }
  return sum;
}

// Returns whether the buffers of the replicas differ. Running statistics, for
// example, are not shared between replicas.
bool replicas_differ(Engine& engine) {
  if (engine.replicas() == 1) return false;
  // For each replica, the checksums of its processes in the order of the
  // stages.
  std::map<std::string, std::string> sums;
  for (const std::string& each :
       engine.all_gather(std::to_string(engine.replica()) + " " +
                         std::to_string(checksum(engine.module())))) {
    const auto space = each.find(' ');
    sums[each.substr(0, space)] += each.substr(space);
  }
  return std::any_of(sums.begin(), sums.end(), [&](const auto& replica) {
    return replica.second != sums.begin()->second;
  });
}

}  // namespace

std::optional<Score> evaluate(Engine& engine, Task& task,
                              const Precision& precision,
                              const std::function<bool()>& stop) {
  const EvalScope scope(engine.module());
  const auto autocast = precision.scope(engine.module().device().type());
  const int64_t batches = task.test_batches();
  // The score must belong to the saved buffers, those of the first replica.
  const bool first_counts = replicas_differ(engine);
  const int64_t shares = first_counts ? 1 : engine.replicas();
  const bool counts = !first_counts || engine.replica() == 0;
  // All replicas run the same number of rounds. Those beyond the end repeat the
  // last mini-batch and do not count.
  const int64_t rounds = (batches + shares - 1) / shares;
  const auto batch_of = [&](int64_t round) {
    return round * shares + (first_counts ? 0 : engine.replica());
  };
  Prefetch<Sample> samples(
      [&](int64_t round) {
        if (!engine.takes_samples()) return Sample();
        return precision.prepare(
            task.test_batch(std::min(batch_of(round), batches - 1)));
      },
      0, rounds);
  Score here;
  for (int64_t round = 0; round < rounds; ++round) {
    if (engine.module().any(stop())) return std::nullopt;
    const Sample sample = samples.next();
    const auto output = engine.forward(sample);
    if (output && counts && batch_of(round) < batches) {
      here += task.score(*output, sample.target);
    }
  }
  return sum_of_all(engine, here);
}

Score score_of_step(const Task& task, const StepData& data,
                    const StepResult& result) {
  if (!result.outputs) return {};
  if (!data.split) {
    return task.score(result.output().cpu(), data.parts.front().target);
  }
  Score score;
  const auto outputs = result.output_parts();
  for (std::size_t k = 0; k < data.parts.size(); ++k) {
    score += task.score(outputs.parts[k].cpu(), data.parts[k].target);
  }
  return score;
}

std::string metrics_of(const Evaluation& evaluation, const Task& task,
                       std::map<std::string, double>& values) {
  const Score &train = evaluation.train, &test = evaluation.test;
  std::string text =
      "loss " +
      number_text(evaluation.losses / static_cast<double>(evaluation.steps));
  const auto add = [&](const std::string& part, const std::string& name,
                       double value) {
    values[part + "_" + name] = value;
    text += " | " + part + " " + name + " " + number_text(value);
  };
  if (train.items > 0) add("train", task.metric_name(), task.metric(train));
  add("test", "loss", test.loss / test.items);
  add("test", task.metric_name(), task.metric(test));
  return text;
}

Score sum_of_all(const Engine& engine, const Score& here) {
  Score all;
  for (const std::string& each :
       engine.all_gather(exact_text({here.items, here.loss, here.value}))) {
    const std::vector<double> sums = parse_exact(each);
    all += {sums.at(0), sums.at(1), sums.at(2)};
  }
  return all;
}

// ---- Peak memory, for --plan

namespace {

// Returns " (+3.1 %)", or "" if nothing was measured.
std::string deviation_text(double predicted, double measured) {
  if (measured <= 0) return "";
  return absl::StrFormat(" (%+.1f %%)", 100 * (predicted / measured - 1));
}

// Returns the bytes of parameters and buffers on `device`.
int64_t module_bytes(const torch::nn::Module& module,
                     const c10::Device& device) {
  std::set<const c10::StorageImpl*> seen;
  int64_t bytes = 0;
  const auto count = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device() != device ||
        !tensor.has_storage() ||
        !seen.insert(tensor.storage().unsafeGetStorageImpl()).second) {
      return;
    }
    bytes += static_cast<int64_t>(tensor.storage().nbytes());
  };
  for (const at::Tensor& each : module.parameters()) count(each);
  for (const at::Tensor& each : module.buffers()) count(each);
  return bytes;
}

}  // namespace

void StepMemory::count_cpu_tensors() {
  instruments::CountingAllocator::install();
}

StepMemory::StepMemory(const torch::nn::Module& module,
                       std::vector<PlannedMemory> planned) {
  for (PlannedMemory& each : planned) {
    const int64_t before = instruments::live_bytes(each.device) -
                           module_bytes(module, each.device);
    places_.push_back({std::move(each), before});
  }
}

void StepMemory::begin() {
  for (const Place& place : places_) {
    instruments::reset_peak_bytes(place.planned.device);
  }
}

void StepMemory::end() {
  for (Place& place : places_) {
    place.peak =
        std::max(place.peak,
                 instruments::peak_bytes(place.planned.device) - place.before);
  }
}

std::vector<std::string> StepMemory::lines() const {
  std::vector<std::string> result;
  for (const Place& place : places_) {
    const auto measured = static_cast<double>(place.peak);
    const double predicted = place.planned.bytes;
    result.push_back(absl::StrCat(
        place.planned.ranks.size() == 1 ? "partition " : "partitions ",
        absl::StrJoin(place.planned.ranks, ","), " on ",
        place.planned.device.str(), ": at most ", bytes_text(measured),
        " in use; ", bytes_text(predicted), " were predicted",
        deviation_text(predicted, measured)));
  }
  return result;
}

// ---- Predicted and measured steps, for --plan

PlanReport::PlanReport(double predicted, StepMemory memory, Gather gather)
    : predicted_(predicted),
      memory_(std::move(memory)),
      gather_(std::move(gather)) {}

void PlanReport::begin() {
  if (predicted_ > 0) memory_.begin();
}

std::optional<std::string> PlanReport::end(double seconds) {
  constexpr std::size_t kSteps = 10;
  if (predicted_ <= 0) return std::nullopt;
  if (is_first_) {
    is_first_ = false;
    return std::nullopt;
  }
  memory_.end();
  seconds_.push_back(seconds);
  return seconds_.size() == kSteps ? finish() : std::nullopt;
}

std::optional<std::string> PlanReport::finish() {
  if (predicted_ <= 0 || seconds_.empty()) return std::nullopt;
  std::sort(seconds_.begin(), seconds_.end());
  const double median = seconds_[seconds_.size() / 2];
  std::string text = absl::StrCat(
      "forward and backward take ", seconds_text(median), " (median of ",
      seconds_.size(), "); ", seconds_text(predicted_), " were predicted",
      deviation_text(predicted_, median));
  predicted_ = 0;
  for (const std::string& lines :
       gather_(absl::StrJoin(memory_.lines(), "\n"))) {
    if (!lines.empty()) text += "\n" + lines;
  }
  return text;
}

}  // namespace gpipe::train_program
