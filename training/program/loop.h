// The training loop, from the first step or the resumed one to the last.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "gpipe/base/status_line.h"
#include "training/generator_states.h"
#include "training/grad_scaler.h"
#include "training/learning_rate.h"
#include "training/metrics_log.h"
#include "training/program/engine.h"
#include "training/program/options.h"
#include "training/program/reports.h"
#include "training/program/run.h"
#include "training/program/saved_run.h"
#include "training/program/step.h"
#include "training/program/task.h"
#include "training/state_on_host.h"

namespace gpipe::train_program {

// ---- Signals

// A handler for SIGINT and SIGTERM, from construction to destruction. It only
// records the first signal, so that the program can end in order. Later signals
// have their default effect: the second one ends the program at once. Only one
// object may exist in a process at any time.
class StopSignals {
 public:
  StopSignals();
  // Restores the previous handlers.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Returns the number of the recorded signal, or 0. Thread-safe.
  int received() const;

 private:
  void (*interrupt_)(int);
  void (*terminate_)(int);
};

// ---- Names of layers

// Descriptions by the layer's name in the Sequential: "layer 17 (BatchNorm2d
// 'layer3_0_bn1')". Layers count from 0.
using LayerNames = std::map<std::string, std::string>;

// Returns the descriptions of all layers of `model`. Threads: may be called
// from any thread while no other thread changes the model.
LayerNames layer_names(const torch::nn::Sequential& model);

// ---- The loop

// The training loop of a run.
//
// Each step trains on Options::accumulate mini-batches as if they were one,
// clips the gradients, and runs the optimizer with the learning rate of the
// step. When they are due, the loop then evaluates, writes the log and saves
// the step.
//
// SIGINT and SIGTERM end the run: the current step is finished and saved. The
// run also ends if the loss or the norm of the gradients is not finite. Then it
// prints the cause and saves nothing. With float16 the GradScaler skips such
// steps, and only 20 of them in a row end the run.
//
// With several processes, all run the same loop. Only the first one prints and
// logs. Not thread-safe. run() changes the signal handlers of the process until
// it returns.
class Loop {
 public:
  // All references must stay valid while this object exists. `options`: with
  // the path of --kineto of this process. `flags`: saved with each step.
  // `print`: a function for lines of output, which also gets the problems of
  // this process. `on_evaluation`: may be null.
  Loop(const Options& options, Task& task, Engine& engine,
       torch::optim::Optimizer& optimizer, SavedRun& saved, FlagValues flags,
       LayerNames names, Print print, OnEvaluation on_evaluation);

  // Runs the loop and returns an exit code (run.h): kDone, kNotFinite or
  // kSignal plus the signal's number. If a signal prevents an evaluation, the
  // resumed run starts with it. Throws what the task, the engine or the file
  // system throws.
  int run();

 private:
  struct Step {
    double loss = 0;
    double norm = 0;   // of the gradients, before clipping
    bool made = true;  // false if the scaler skipped the step
    bool finite = true;
  };

  void say(const std::string& line);
  void begin();
  // Returns the data of step `step`, counted from 0, for this process.
  StepData load(int64_t step);
  StepResult train(const StepData& data, const TrainOptions& options);
  Step make_step(const StepData& data);
  int stop_for(const Step& step);
  void write_trace_of(const StepResult& result);
  std::map<std::string, double> values_of(const Step& step,
                                          double seconds) const;
  // Evaluates, logs and saves if they are due. Returns the signal that ends the
  // run, or 0.
  int finish_step(std::map<std::string, double> values);
  // Runs the evaluation that a signal prevented in an earlier process. Returns
  // the signal that ends the run, or 0.
  int make_up_test();
  // Evaluates and adds the results to `values`. Returns false if a signal ended
  // the evaluation. `untested_` keeps the values of the step then.
  bool evaluate_now(std::map<std::string, double>& values);
  int end_for(int signal);
  int stop_signal();
  // `goes_on`: training continues, so that the save may run beside it.
  void save(bool goes_on);
  void warn();
  void show(double loss);
  void say_if_not_traced();
  // Prints the report of a plan, and waits for a save in the background. All
  // processes call this, while they can exchange texts.
  void finish();
  int train_all();
  double epoch() const;

  const Options options_;
  Task& task_;
  Engine& engine_;
  torch::optim::Optimizer& optimizer_;
  SavedRun& saved_;
  const FlagValues flags_;
  const LayerNames names_;
  const OnEvaluation on_evaluation_;
  const Precision precision_;
  const LearningRates rates_;
  const int64_t steps_;
  const int64_t eval_every_;
  StatusLine line_;
  PlanReport plan_report_;
  std::optional<GradScaler> scaler_;
  std::optional<StateOnHost> on_host_;  // with --optimizer_on_host
  std::unique_ptr<MetricsLog> log_;
  StopSignals signals_;

  int64_t first_ = 0;  // steps done before this process started
  int64_t step_ = 0;   // steps done
  // See Standing::untested.
  std::optional<std::map<std::string, double>> untested_;
  bool traced_ = false;         // Options::trace_step was reached
  int64_t left_out_ = 0;        // skipped steps in a row
  GeneratorStates generators_;  // at the beginning of the step
  double seconds_ = 0;          // training time since `first_`
  Evaluation next_;             // what is known of the next evaluation
};

}  // namespace gpipe::train_program
