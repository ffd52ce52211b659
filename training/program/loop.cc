#include "training/program/loop.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "gpipe/base/devices.h"
#include "gpipe/base/text.h"
#include "gpipe/distributed/error.h"
#include "gpipe/distributed/timeline.h"
#include "models/weights/files.h"
#include "training/files/parameter_rows.h"
#include "training/kineto.h"
#include "training/non_finite.h"
#include "training/program/generate.h"
#include "training/trace.h"

namespace gpipe::train_program {

// ---- Signals

namespace {

std::atomic<int> signal_received{0};
static_assert(std::atomic<int>::is_always_lock_free, "for signal handlers");

void note(int number) {
  signal_received = number;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

StopSignals::StopSignals() {
  signal_received = 0;
  interrupt_ = std::signal(SIGINT, note);
  terminate_ = std::signal(SIGTERM, note);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, interrupt_);
  std::signal(SIGTERM, terminate_);
}

int StopSignals::received() const { return signal_received; }

// ---- Numbers of steps

namespace {

// Returns the number of steps of a run: Options::steps or, if that is 0, those
// of Options::epochs, at least 1. Throws c10::ValueError if steps < 0, if
// epochs < 1, or if 64 bits do not hold the number.
int64_t steps_of(const Options& options, const Task& task) {
  TORCH_CHECK_VALUE(options.steps >= 0 && options.epochs > 0,
                    "--steps=", options.steps, " and --epochs=", options.epochs,
                    ": --steps must be at least 0 and --epochs at least 1");
  if (options.steps > 0) return options.steps;
  int64_t batches = 0;
  TORCH_CHECK_VALUE(
      !__builtin_mul_overflow(options.epochs, task.train_batches(), &batches),
      "--epochs=", options.epochs, " of ", task.train_batches(),
      " mini-batches are more steps than can be counted; use fewer");
  return std::max<int64_t>(1, batches / options.accumulate);
}

// Returns after how many steps a run evaluates: Options::eval_every or, if that
// is 0, an epoch.
int64_t eval_every(const Options& options, const Task& task) {
  if (options.eval_every != 0) return options.eval_every;
  return std::max<int64_t>(1, task.train_batches() / options.accumulate);
}

}  // namespace

// ---- Names of layers

LayerNames layer_names(const torch::nn::Sequential& model) {
  LayerNames names;
  int64_t index = 0;
  for (const auto& child : model->named_children()) {
    names[child.key()] = "layer " + std::to_string(index++) + " (" +
                         module_type_name(child.value()->name()) + " '" +
                         child.key() + "')";
  }
  return names;
}

// ---- NaN and infinite values

namespace {

std::string list(const std::vector<std::string>& names) {
  constexpr std::size_t kLongest = 10;
  if (names.empty()) return "none";
  if (names.size() <= kLongest) return absl::StrJoin(names, ", ");
  return absl::StrCat(
      absl::StrJoin(names.begin(), names.begin() + kLongest, ", "), ", ... (",
      names.size(), " in all)");
}

std::string parameters_text(Engine& engine) {
  return "Parameters that are not finite: " +
         list(non_finite_names(engine.module().named_parameters()));
}

// With a sharded optimizer, gradients are those of rows of parameters.
std::string gradients_text(Engine& engine) {
  const auto parameters = engine.module().named_parameters();
  const internal::ParameterNames names(parameters);
  torch::OrderedDict<std::string, at::Tensor> trained;
  for (const at::Tensor& each : engine.module().optimizer_parameters()) {
    const auto rows = names.find(each);
    if (rows) trained.insert(rows->key(rows->names.front()), each);
  }
  return "Parameters whose gradients are not finite: " +
         list(non_finite_gradients(trained));
}

std::string place_text(const Failure& failure, const LayerNames& names) {
  const auto found = names.find(failure.layer);
  return "The first layer that returned such numbers is " +
         (found != names.end() ? found->second : "'" + failure.layer + "'") +
         " in micro-batch " + std::to_string(failure.microbatch) + ", " +
         to_string(failure.phase) + ": ";
}

// Where a step had a NaN or an infinity first, and what may help.
struct NonFinite {
  std::string where;
  std::string remedy =
      "A smaller --lr, a warm-up in --lr_schedule, --clip or another "
      "--precision may help.";
};

// Repeats a step to find the layer that first returned a NaN or an infinity.
// Restores `generators`, the random states at the beginning of the step, and
// clears all gradients. Then calls `again` with options that check every layer.
// `where` names the layer, the micro-batch, and all parameters and gradients
// that are not finite.
//
// Afterwards the gradients are those of the repeated step. With several
// processes, training cannot continue if a layer was found.
NonFinite find_non_finite(
    Engine& engine, const LayerNames& names, const GeneratorStates& generators,
    const std::function<void(const TrainOptions&)>& again) {
  set_generator_states(generators);
  engine.module().zero_grad();
  try {
    again(TrainOptions().check_finite(true));
  } catch (const NonFiniteError& error) {
    const auto failure = engine.module().last_failure();
    // Outside of layers, the text of the error has the place.
    const bool in_layer = failure && !failure->layer.empty();
    NonFinite found{(in_layer ? place_text(*failure, names) : "Found first: ") +
                    error.what_without_backtrace() + ". " +
                    parameters_text(engine) + "."};
    // Outside of layers, a forward checks the mini-batch alone.
    if (failure && !in_layer &&
        (failure->phase == Phase::kForward ||
         failure->phase == Phase::kCheckpointing)) {
      found.remedy = "Correct the rows of --data_dir with such numbers.";
    }
    return found;
  } catch (const PeerError& error) {
    return {std::string("Found in another process: ") +
            error.what_without_backtrace()};
  }
  return {"When the step was repeated, all layers returned finite numbers. " +
          gradients_text(engine) + ". " + parameters_text(engine) + "."};
}

// ---- The loop

// After 20 skipped steps the scale has fallen from 65536 to 1/16. A gradient
// that is still infinite would be infinite at any scale.
constexpr int64_t kMostLeftOut = 20;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::optional<GradScaler> make_scaler(const Precision& precision,
                                      Engine& engine) {
  if (!precision.scales()) return std::nullopt;
  return GradScaler(GradScalerOptions().any(
      [&engine](bool here) { return engine.module().any(here); }));
}

// Blocks until the accelerators have finished all work.
void wait_for_devices(Engine& engine) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& parameter : engine.module().parameters()) {
    devices.push_back(parameter.device());
  }
  synchronize(devices);
}

}  // namespace

Loop::Loop(const Options& options, Task& task, Engine& engine,
           torch::optim::Optimizer& optimizer, SavedRun& saved,
           FlagValues flags, LayerNames names, Print print,
           OnEvaluation on_evaluation)
    : options_(options),
      task_(task),
      engine_(engine),
      optimizer_(optimizer),
      saved_(saved),
      flags_(std::move(flags)),
      names_(std::move(names)),
      on_evaluation_(std::move(on_evaluation)),
      precision_(precision_of(options.precision)),
      rates_(LearningRateSchedule(options.lr_schedule), optimizer),
      steps_(steps_of(options, task)),
      eval_every_(eval_every(options, task)),
      line_(std::move(print)),
      plan_report_(engine.predicted_seconds(),
                   StepMemory(engine.module(), engine.planned_memory()),
                   [&engine](const std::string& mine) {
                     return engine.all_gather(mine);
                   }),
      scaler_(make_scaler(precision_, engine)) {
  if (options.optimizer_on_host) on_host_.emplace(optimizer);
}

void Loop::say(const std::string& line) {
  if (engine_.rank() == 0) line_.say(line);
}

void Loop::begin() {
  Standing standing =
      saved_.load(engine_, optimizer_, scaler_ ? &*scaler_ : nullptr);
  if (on_host_) on_host_->store();
  step_ = first_ = standing.step;
  if (eval_every_ > 0) untested_ = std::move(standing.untested);
  next_ = standing.next;
  if (engine_.rank() > 0) next_.train = {};  // rank 0 has that of all processes
  if (first_ > 0) {
    say(absl::StrFormat("resumes at step %d, saved in %s", first_,
                        saved_.folder_of(first_)));
  }
  // Before the first step, so that a wrong path ends the run here.
  using internal::folder_of, internal::make_folders;
  make_folders(folder_of(options_.kineto));
  if (engine_.rank() > 0) return;
  make_folders(folder_of(options_.trace));
  if (options_.run_dir.empty()) return;
  std::vector<std::string> columns{"epoch", "loss", "lr", "grad_norm",
                                   task_.rows_name() + "_per_second"};
  if (scaler_) columns.push_back("scale");
  // Always present, so that --eval_every can change when the run resumes.
  columns.push_back("test_loss");
  columns.push_back("test_" + task_.metric_name());
  if (options_.train_score) columns.push_back("train_" + task_.metric_name());
  // If the last step is evaluated now, its row is written again.
  log_ = std::make_unique<MetricsLog>(options_.run_dir, std::move(columns),
                                      untested_ ? first_ - 1 : first_);
}

StepData Loop::load(int64_t step) {
  if (!engine_.takes_samples()) return {{Sample()}, task_.has_parts()};
  StepShare share;
  share.batch = options_.batch;
  share.accumulate = options_.accumulate;
  share.replica = engine_.replica();
  share.replicas = engine_.replicas();
  share.microbatches = engine_.microbatches();
  StepData data = load_step(task_, share, step);
  for (Sample& part : data.parts) part = precision_.prepare(std::move(part));
  pin(data, engine_.module().device());
  return data;
}

StepResult Loop::train(const StepData& data, const TrainOptions& options) {
  const auto autocast = precision_.scope(engine_.module().device().type());
  // The gradients of a sum over many items, times the scale, would overflow
  // float16. A common divisor of sum and weight leaves the quotient as it is,
  // and brings gradients to the size that those of a mean have. A power of two
  // rounds nothing.
  const double divisor = std::exp2(std::floor(std::log2(data.items)));
  const LossOf loss = [&](const at::Tensor& output, const at::Tensor& target) {
    WeightedLoss sums = task_.loss(output, target);
    if (!scaler_) return sums;
    sums.sum = sums.sum / divisor;
    sums.weight = sums.weight / divisor;
    return scaler_->scale(std::move(sums));
  };
  // A fixed order of sums gives the same bits for any schedule.
  TrainOptions all = options;
  all.fixed_sum_order(options_.deterministic).outputs(options_.train_score);
  return engine_.train(data, loss, all);
}

void Loop::write_trace_of(const StepResult& result) {
  const WholeTimeline whole = engine_.whole_timeline(result.timeline.value());
  if (engine_.rank() > 0) return;
  const std::string summary = write_trace(options_.trace, whole.replicas);
  std::string clocks;
  if (engine_.ranks() > 1) {
    clocks = "; the clocks of its processes agree within " +
             seconds_text(whole.clock_error);
  }
  say("the timeline of step " + std::to_string(step_ + 1) + " is in " +
      options_.trace + clocks + "\n" + summary);
}

Loop::Step Loop::make_step(const StepData& data) {
  const bool traced = step_ - first_ + 1 == options_.trace_step;
  traced_ = traced_ || traced;
  std::optional<KinetoTrace> kineto;
  if (traced && !options_.kineto.empty()) {
    kineto.emplace(options_.kineto);
  }
  rates_.set(optimizer_, step_);
  optimizer_.zero_grad();
  generators_ = generator_states();
  Step step;
  const double scale = scaler_ ? scaler_->scale() : 1;
  const bool timed = traced && !options_.trace.empty();
  const auto start = Clock::now();
  plan_report_.begin();
  StepResult result = train(data, TrainOptions().timeline(timed));
  step.loss = result.loss.item<double>() / scale;
  if (const auto text = plan_report_.end(seconds_since(start))) say(*text);
  if (timed) write_trace_of(result);
  next_.train += score_of_step(task_, data, result);
  result.outputs.reset();  // leaves room for the state of the optimizer
  if (scaler_) scaler_->unscale_(optimizer_);
  step.norm = engine_.module().clip_grad_norm_(
      options_.clip > 0 ? options_.clip
                        : std::numeric_limits<double>::infinity());
  step.finite = std::isfinite(step.loss) && std::isfinite(step.norm);
  if (on_host_) on_host_->fetch();
  if (scaler_) {
    step.made = scaler_->step(optimizer_);
    scaler_->update();
    left_out_ = step.made ? 0 : left_out_ + 1;
    step.finite = left_out_ < kMostLeftOut;
  } else if (step.finite) {
    optimizer_.step();
  }
  if (on_host_) on_host_->store();
  engine_.module().share_parameters();
  if (kineto) {
    wait_for_devices(engine_);
    kineto->stop();
    say("the operators of step " + std::to_string(step_ + 1) + " are in " +
        options_.kineto);
  }
  return step;
}

int Loop::stop_for(const Step& step) {
  // Before the repeated step, which may end the world. If a save in the
  // background has failed, the cause of the step's end is told nevertheless.
  std::exception_ptr of_save;
  try {
    finish();
  } catch (...) {
    of_save = std::current_exception();
  }
  const NonFinite found = find_non_finite(
      engine_, names_, generators_,
      [this](const TrainOptions& options) { train(load(step_), options); });
  // Any process prints this, since the one that found the cause knows the most.
  line_.say(absl::StrFormat(
      "step %d: the loss is %s, the norm of the gradients %s. %s This step is "
      "not saved. %s",
      step_ + 1, number_text(step.loss), number_text(step.norm), found.where,
      found.remedy));
  if (of_save) std::rethrow_exception(of_save);
  return kNotFinite;
}

bool Loop::evaluate_now(std::map<std::string, double>& values) {
  const auto score = evaluate(engine_, task_, precision_,
                              [this] { return signals_.received() != 0; });
  warn();
  if (!score) return false;
  if (score->items == 0) {
    save(/*goes_on=*/false);  // the data may be corrected
    saved_.wait();
    TORCH_CHECK_VALUE(false,
                      "nothing in the test data can be scored: no file can be "
                      "read, or no label counts; correct the data, or train "
                      "without evaluations (--eval_every=-1)");
  }
  untested_.reset();
  Evaluation now = std::exchange(next_, {});
  now.step = step_;
  now.test = *score;
  if (options_.train_score) now.train = sum_of_all(engine_, now.train);
  const std::string text = metrics_of(now, task_, values);
  say(absl::StrFormat("step %d/%d | epoch %.2f | %s | %s", step_, steps_,
                      epoch(), text, clock_text(seconds_)));
  if (options_.sample > 0) {
    say("the model writes: " +
        sample_text(engine_, task_, options_, precision_, step_));
  }
  if (on_evaluation_) on_evaluation_(now, engine_.module());
  return true;
}

int Loop::stop_signal() {
  const int here = signals_.received();
  if (!engine_.module().any(here != 0)) return 0;
  int first = 0;
  for (const std::string& each : engine_.all_gather(std::to_string(here))) {
    if (first == 0) first = std::stoi(each);
  }
  return first;
}

void Loop::save(bool goes_on) {
  if (!saved_.saves()) return;
  const bool in_background = options_.save_in_background && goes_on;
  const auto start = Clock::now();
  Evaluation next = next_;
  if (options_.train_score) next.train = sum_of_all(engine_, next.train);
  saved_.save({step_, untested_, next}, engine_, optimizer_,
              scaler_ ? &*scaler_ : nullptr, flags_, in_background);
  if (!in_background) return;
  say(absl::StrFormat(
      "step %d is saved in the background; training stopped for %.3f s", step_,
      seconds_since(start)));
}

double Loop::epoch() const {
  return static_cast<double>(step_ * options_.accumulate) /
         static_cast<double>(task_.train_batches());
}

void Loop::warn() {
  for (const std::string& warning : task_.take_warnings()) line_.say(warning);
}

void Loop::show(double loss) {
  warn();
  if (engine_.rank() > 0) return;
  line_.update([&] {
    Progress progress;
    progress.first = first_;
    progress.step = step_;
    progress.steps = steps_;
    progress.epoch = epoch();
    progress.loss = loss;
    progress.rows_per_second =
        static_cast<double>((step_ - first_) * options_.accumulate *
                            options_.batch) /
        seconds_;
    progress.rows_name = task_.rows_name();
    progress.seconds = seconds_;
    return to_text(progress);
  });
}

std::map<std::string, double> Loop::values_of(const Step& step,
                                              double seconds) const {
  std::map<std::string, double> values{
      {"epoch", epoch()},
      {"loss", step.loss},
      {"lr", optimizer_.param_groups().front().options().get_lr()},
      {"grad_norm", step.norm},
      {task_.rows_name() + "_per_second",
       static_cast<double>(options_.accumulate * options_.batch) / seconds}};
  if (scaler_) values["scale"] = scaler_->scale();
  return values;
}

int Loop::finish_step(std::map<std::string, double> values) {
  const bool last = step_ == steps_;
  int signal = stop_signal();
  const bool due = eval_every_ > 0 && (step_ % eval_every_ == 0 || last);
  if (due) untested_ = values;
  if (due && signal == 0 && !evaluate_now(values)) signal = stop_signal();
  if (log_) log_->write(step_, values);
  const bool saves =
      options_.save_every > 0 && step_ % options_.save_every == 0;
  if (saves || last || signal != 0) save(/*goes_on=*/!last && signal == 0);
  return signal;
}

int Loop::make_up_test() {
  auto values = *untested_;
  const bool made = evaluate_now(values);
  if (log_) log_->write(step_, values);
  if (!made) return stop_signal();
  save(/*goes_on=*/step_ <
       steps_);  // so that the next process does not evaluate again
  return 0;
}

int Loop::end_for(int signal) {
  const std::string made = absl::StrFormat("%d of %d", step_, steps_);
  say(std::string(signal == SIGINT ? "SIGINT" : "SIGTERM") +
      ": ends after step " + made +
      (untested_ ? ", before its evaluation" : "") +
      (saved_.saves() ? ", saved in " + saved_.folder_of(step_) +
                            "; run the same command to resume"
                      : "; nothing is saved without --run_dir"));
  return kSignal + signal;
}

void Loop::say_if_not_traced() {
  if (traced_ || (options_.trace.empty() && options_.kineto.empty())) return;
  say("no step was traced: --trace_step=" +
      std::to_string(options_.trace_step) +
      " counts from the start of this program, which has run " +
      std::to_string(step_ - first_) + " steps");
}

int Loop::run() {
  begin();
  const int code = train_all();
  finish();
  say_if_not_traced();
  return code;
}

void Loop::finish() {
  if (const auto text = plan_report_.finish()) say(*text);
  saved_.wait();
}

int Loop::train_all() {
  if (untested_) {
    if (const int signal = make_up_test(); signal != 0) return end_for(signal);
  } else if (step_ >= steps_) {
    say(absl::StrFormat("nothing to do: %d of %d steps are done", step_,
                        steps_));
    return kDone;
  }
  std::optional<Prefetch<StepData>> samples(
      std::in_place, [this](int64_t step) { return load(step); }, step_,
      steps_);
  while (step_ < steps_) {
    const auto start = Clock::now();
    const auto cpu_start = std::clock();
    const Step step = make_step(samples->next());
    if (!step.finite) {
      samples.reset();  // waits for the loading thread, which uses the task
      return stop_for(step);
    }
    ++step_;
    const double seconds = seconds_since(start);
    seconds_ += seconds;
    next_.losses += step.loss;
    ++next_.steps;
    next_.seconds += seconds;
    next_.cpu_seconds +=
        static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
    show(step.loss);
    const int signal = finish_step(values_of(step, seconds));
    if (signal != 0 && (untested_ || step_ < steps_)) return end_for(signal);
  }
  say("all " + std::to_string(steps_) + " steps are done" +
      (saved_.saves() ? ", saved in " + saved_.folder_of(step_) : ""));
  return kDone;
}

}  // namespace gpipe::train_program
