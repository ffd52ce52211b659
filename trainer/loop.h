// Training, from the first step to the last, or from where it was.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/text/status_line.h"
#include "trainer/engine.h"
#include "trainer/layer_names.h"
#include "trainer/options.h"
#include "trainer/precision.h"
#include "trainer/run_words.h"
#include "trainer/saved_run.h"
#include "trainer/stop.h"
#include "trainer/task.h"
#include "training/generator_states.h"
#include "training/grad_scaler.h"
#include "training/learning_rate.h"
#include "training/metrics_log.h"

namespace gpipe::trainer {

using Print = std::function<void(const std::string& line)>;

// Each step: gradients of LoopOptions::accumulate mini-batches; clipping; the
// optimizer, at the step's rate. After it: evaluation, the log and a saved step
// when it is time for them. SIGINT and SIGTERM end the run after the step that
// is being made, which is saved. A loss or a gradient norm that is not finite
// ends it, too: what has caused it is said, and nothing saved. With float16,
// whose scaler leaves such steps out, only many of them in a row do.
//
// Of several processes, all run the same; the first one prints and logs.
// Threads: one; it changes the process's signal handlers meanwhile.
class Loop {
 public:
  // All live as long as this. `words`: for saved steps. `print`: for lines that
  // stay, also of what is wrong in this process.
  Loop(const LoopOptions& options, int64_t batch, Task& task, Engine& engine,
       torch::optim::Optimizer& optimizer, SavedRun& saved, Words words,
       LayerNames names, Print print);

  // An exit code, see exit_code.h: kDone, kNotFinite or kSignal + number. A run
  // that a signal keeps from a test begins with that when it goes on.
  // Errors: what the task, the engine or a file throws.
  int run();

 private:
  struct Step {
    double loss = 0;
    double norm = 0;   // of the gradients, before they were clipped
    bool made = true;  // not left out for an infinite gradient
    bool finite = true;
  };

  void say(const std::string& line);
  void begin();
  Sample load(int64_t index);
  StepResult train(const Sample& sample, const TrainOptions& options);
  Step make_step(const std::function<Sample()>& next);
  int stop_for(const Step& step);
  void write_trace_of(const StepResult& result);
  std::map<std::string, double> values_of(const Step& step,
                                          double seconds) const;
  // Evaluates, logs and saves if it is time. The signal to stop for, or 0.
  int finish_step(std::map<std::string, double> values);
  // The test that a signal has kept an earlier process from making.
  int make_up_test();
  // Whether it has come to its end; else untested_ has `values`.
  bool evaluate_now(std::map<std::string, double>& values);
  int end_for(int signal);
  int stop_signal();
  void save();
  void warn();
  void show(double loss);
  void say_if_not_traced();
  int train_all();
  double epoch() const;

  const LoopOptions options_;
  const int64_t batch_;  // rows, of all replicas together
  Task& task_;
  Engine& engine_;
  torch::optim::Optimizer& optimizer_;
  SavedRun& saved_;
  const Words words_;
  const LayerNames names_;
  const Precision precision_;
  const LearningRates rates_;
  const int64_t steps_;
  const int64_t eval_every_;
  StatusLine line_;
  std::optional<GradScaler> scaler_;
  std::unique_ptr<MetricsLog> log_;
  StopSignals signals_;

  int64_t first_ = 0;                                      // of this process
  int64_t step_ = 0;                                       // have been made
  std::optional<std::map<std::string, double>> untested_;  // see Standing
  bool traced_ = false;         // LoopOptions::trace_step has come
  int64_t left_out_ = 0;        // in a row
  GeneratorStates generators_;  // before the step
  double seconds_ = 0;          // of training, since first_
  double losses_ = 0;           // of steps, since the last evaluation
  int64_t losses_of_ = 0;
};

}  // namespace gpipe::trainer
