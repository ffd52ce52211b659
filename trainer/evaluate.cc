#include "trainer/evaluate.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "trainer/prefetch.h"

namespace gpipe::trainer {
namespace {

// Back to training however the scope ends.
class EvalScope {
 public:
  explicit EvalScope(torch::nn::Module& module) : module_(module) {
    module_.eval();
  }
  ~EvalScope() { module_.train(); }
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  torch::nn::Module& module_;
};

std::string text_of(const Score& score) {
  std::ostringstream text;
  text.precision(17);
  text << score.items << " " << score.loss << " " << score.value;
  return text.str();
}

// std::stod reads "nan" and "inf", which streams do not.
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

}  // namespace

std::optional<Score> evaluate(Engine& engine, Task& task,
                              const Precision& precision,
                              const std::function<bool()>& stop) {
  const EvalScope scope(engine.module());
  const auto autocast = precision.scope(engine.device().type());
  const int64_t batches = task.test_batches();
  // All replicas make as many steps; what is beyond the end does not count.
  const int64_t rounds = (batches + engine.replicas() - 1) / engine.replicas();
  const auto batch_of = [&](int64_t round) {
    return round * engine.replicas() + engine.replica();
  };
  Prefetch samples(
      [&](int64_t round) {
        if (!engine.takes_samples()) return Sample();
        return precision.prepare(
            task.test_batch(std::min(batch_of(round), batches - 1)));
      },
      0, rounds);
  Score here;
  for (int64_t round = 0; round < rounds; ++round) {
    if (engine.any(stop())) return std::nullopt;
    const Sample sample = samples.next();
    const auto output = engine.forward(sample.input);
    if (output && batch_of(round) < batches) {
      here += task.score(*output, sample.target);
    }
  }
  Score all;
  for (const std::string& each : engine.all_gather(text_of(here))) {
    all += score_of(each);
  }
  return all;
}

}  // namespace gpipe::trainer
