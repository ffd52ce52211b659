#include "trainer/run.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "data/random.h"
#include "trainer/exit_code.h"
#include "trainer/initial_weights.h"
#include "trainer/make_task.h"
#include "trainer/meet.h"
#include "trainer/optimizer.h"
#include "trainer/parse.h"
#include "trainer/run_words.h"
#include "training/kineto.h"

namespace gpipe::trainer {
namespace {

constexpr char kBalance[] = "balance";

void make_deterministic() {
  // Of cuBLAS, which reads it when it is first used.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

// What would otherwise be found out after a while.
void check(const Options& options) {
  precision_of(options.loop.precision);
  const LearningRateSchedule schedule(options.loop.lr_schedule);
  parse_checkpoint(options.engine.checkpoint);
  parse_devices(options.engine.devices);
  (void)make_optimizer(options.optimizer, *torch::nn::Sequential());
  TORCH_CHECK_VALUE(options.loop.kineto.empty() || KinetoTrace::is_available(),
                    "--kineto: this LibTorch has no profiler");
  TORCH_CHECK_VALUE(options.loop.trace_step > 0,
                    "--trace_step=", options.loop.trace_step,
                    ": must be at least 1");
  const std::string& resume = options.loop.resume;
  TORCH_CHECK_VALUE(!options.loop.run_dir.empty() || resume.empty() ||
                        resume == "none" || resume == "auto",
                    "--resume=", resume,
                    ": there are no steps without --run_dir");
  TORCH_CHECK_VALUE(options.loop.clip >= 0, "--clip=", options.loop.clip,
                    ": must not be negative");
}

void merge(Words& into, const Words& from) {
  into.insert(from.begin(), from.end());
}

}  // namespace

int run(const Options& options, Task& task, const Print& print) {
  check(options);
  if (options.loop.deterministic) make_deterministic();
  const auto meeting = meet(options.engine);
  const auto say = [&](const std::string& line) {
    if (meeting->rank() == 0) print(line);
  };
  // Each process reads its own flags, its own data and its own weights.
  const auto check_same = [&](const Words& mine) {
    std::vector<Words> all;
    for (const std::string& each : meeting->all_gather(bytes_of(mine))) {
      all.push_back(words_of(each));
    }
    try {
      check_same_words(all);
    } catch (const c10::Error&) {
      // All have found it, once they have got here. Some might hear before that
      // of one that has ended.
      try {
        meeting->all_gather("");
      } catch (const c10::Error&) {
        // Others have got here, and ended.
      }
      throw;
    }
  };
  check_same(shared_words(options, task));
  say("data: " + task.data() +
      (options.task.data.empty()
           ? "; drawn by this program, for want of --data_dir"
           : ""));

  SavedRun saved(
      options.loop, meeting->rank(), meeting->ranks(),
      [&](const std::string& mine) { return meeting->all_gather(mine); },
      print);
  const auto before = saved.words();
  Words words = fixed_words(options, task);
  const Words changeable = changeable_words(options);
  EngineParts parts;
  if (before) {
    check_fixed_words(*before, words, options.loop.run_dir);
    for (const std::string& line : changes(*before, changeable)) say(line);
    const auto balance = before->find(kBalance);
    if (balance != before->end()) {
      parts.balance_before = parse_numbers(kBalance, balance->second);
    }
  }
  merge(words, changeable);

  torch::manual_seed(options.task.seed);
  parts.model = task.model();
  const Precision precision = precision_of(options.loop.precision);
  if (!before && !options.loop.weights.empty()) {
    const InitialWeights loaded =
        load_initial_weights(parts.model, options.task.model,
                             options.loop.weights, options.loop.weights_skip);
    check_same(
        {{"--weights", "of checksum " + std::to_string(loaded.checksum)}});
    say(loaded.line);
  }
  precision.convert(parts.model);
  const LayerNames names = layer_names(parts.model);
  parts.batch = options.task.batch;
  parts.precision = precision;
  parts.input = [&](int64_t rows) {
    return precision.prepare(task.train_batch(0, {0, rows})).input;
  };
  const auto engine = meeting->make_engine(options.engine, std::move(parts));
  words[kBalance] = text_of(engine->balance());
  say("layers per stage: " + words[kBalance]);

  const auto optimizer = make_optimizer(options.optimizer, engine->module());
  // Whatever has drawn before.
  torch::manual_seed(data::mix_seed(options.task.seed, 1));
  Loop loop(options.loop, options.task.batch, task, *engine, *optimizer, saved,
            std::move(words), names, print);
  return loop.run();
}

int run(const Options& options, const Print& print) {
  const auto task = make_task(options.task);
  return run(options, *task, print);
}

Ending ending_of(const std::exception& error) {
  if (const auto* of_user = dynamic_cast<const c10::ValueError*>(&error)) {
    return {kWrongFlags, of_user->what_without_backtrace()};
  }
  if (const auto* of_user = dynamic_cast<const c10::IndexError*>(&error)) {
    return {kWrongFlags, of_user->what_without_backtrace()};
  }
  if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr) {
    return {kWrongFlags, error.what()};
  }
  if (const auto* other = dynamic_cast<const c10::Error*>(&error)) {
    return {kFailed, other->what_without_backtrace()};
  }
  return {kFailed, error.what()};
}

}  // namespace gpipe::trainer
