#include "training/program/evaluate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>

#include "gpipe/eval_scope.h"
#include "training/data/checksum.h"
#include "training/program/prefetch.h"
#include "training/program/status.h"

namespace gpipe::train_program {
namespace {

std::string text_of(const Score& score) {
  std::ostringstream text;
  text.precision(17);
  text << score.items << " " << score.loss << " " << score.value;
  return text.str();
}

// Reads with std::stod, since streams cannot read "nan" and "inf".
Score score_of(const std::string& text) {
  std::istringstream stream(text);
  std::string items, loss, value;
  stream >> items >> loss >> value;
  Score score;
  score.items = std::stod(items);
  score.loss = std::stod(loss);
  score.value = std::stod(value);
  return score;
}

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
  for (const std::string& each : engine.all_gather(text_of(here))) {
    all += score_of(each);
  }
  return all;
}

}  // namespace gpipe::train_program
