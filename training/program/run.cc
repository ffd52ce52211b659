#include "training/program/run.h"

#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/base/devices.h"
#include "gpipe/base/text.h"
#include "gpipe/meta.h"
#include "gpipe/schedule/microbatches.h"
#include "models/exported/exported.h"
#include "models/weights/state_dict.h"
#include "training/data/random.h"
#include "training/kineto.h"
#include "training/program/engine.h"
#include "training/program/eval_model.h"
#include "training/program/exit_code.h"
#include "training/program/final_weights.h"
#include "training/program/initial_weights.h"
#include "training/program/lora_setup.h"
#include "training/program/make_task.h"
#include "training/program/optimizer.h"
#include "training/program/run_flags.h"
#include "training/program/same_flags.h"
#include "training/program/sample_text.h"
#include "training/program/step_memory.h"
#include "training/shardable.h"

namespace gpipe::train_program {
namespace {

constexpr char kBalance[] = "balance";

// Throws for wrong options that would otherwise be detected only later.
void check(const Options& options) {
  precision_of(options.precision);
  const LearningRateSchedule schedule(options.lr_schedule);
  with_value_error([&] {
    parse_checkpoint(options.checkpoint);
    parse_devices(options.devices);
    return 0;
  });
  (void)make_optimizer(options, {});
  TORCH_CHECK_VALUE(options.kineto.empty() || KinetoTrace::is_available(),
                    "--kineto: this LibTorch has no profiler");
  TORCH_CHECK_VALUE(options.trace_step > 0, "--trace_step=", options.trace_step,
                    ": must be at least 1");
  const std::string& resume = options.resume;
  TORCH_CHECK_VALUE(!options.run_dir.empty() || resume.empty() ||
                        resume == "none" || resume == "auto",
                    "--resume=", resume,
                    ": needs --run_dir, which contains the saved steps");
  TORCH_CHECK_VALUE(options.shard_size > 0, "--shard_size=", options.shard_size,
                    ": must be at least 1");
  TORCH_CHECK_VALUE(options.clip >= 0, "--clip=", options.clip,
                    ": must not be negative");
}

// Returns the model without reading weights.
torch::nn::Sequential without_values(const Task& task) {
  const MetaGuard meta;
  return task.model();
}

// Returns some layers of a file, with adapters if they are trained.
torch::nn::Sequential layers_of(const ExportedFile& file,
                                const Options& options, int64_t first,
                                int64_t count) {
  const torch::nn::Sequential layers = file.read(first, count).layers;
  add_adapters(layers, options);
  return layers;
}

// Sets the parts that evaluate another file. `reads_parts`: each process reads
// its own layers only.
void add_eval_model(const ExportedFile& file, const Options& options,
                    bool reads_parts, EngineParts& parts) {
  if (!reads_parts) {
    parts.eval_model = layers_of(file, options, 0, file.size());
    return;
  }
  const MetaGuard meta;
  parts.eval_model = layers_of(file, options, 0, file.size());
  parts.make_eval = [file, &options](int64_t first, int64_t count) {
    return layers_of(file, options, first, count);
  };
}

// Returns the flags of a run. If it resumes the run of the flags `before`,
// checks that both fit, prints what has changed, and sets
// EngineParts::balance_before.
FlagValues flags_of_run(const Options& options, const Task& task,
                        const std::optional<FlagValues>& before,
                        EngineParts& parts, const Print& say) {
  FlagValues flags = fixed_flags(options, task);
  const FlagValues changeable = changeable_flags(options, task);
  if (before) {
    check_fixed_flags(*before, flags, options.run_dir);
    for (const std::string& line : changes(*before, changeable)) say(line);
    const auto balance = before->find(kBalance);
    if (balance != before->end()) {
      parts.balance_before = with_value_error(
          [&] { return parse_numbers(kBalance, balance->second); });
    }
  }
  flags.insert(changeable.begin(), changeable.end());
  return flags;
}

}  // namespace

int run(const Options& given_options, Task& task, const Print& print,
        const OnEvaluation& on_evaluation) {
  const Options options = with_adapter_options(given_options);
  check(options);
  check_evaluation(options, task.source());
  check_sample(options, task);
  std::optional<ExportedFile> evaluated;
  if (options.eval_every >= 0 && !options.eval_model.empty()) {
    evaluated = eval_file(options, task.source());
  }
  if (options.deterministic) use_deterministic_kernels();
  const RunProcesses processes(options);
  const auto say = [&](const std::string& line) {
    if (processes.rank() == 0) print(line);
  };
  const auto check_same = [&](const FlagValues& mine) {
    check_same_in_all(processes, mine);
  };
  check_same(shared_flags(options, task));
  if (evaluated) {
    check_same(
        {{"--eval_model",
          "of checksum " + std::to_string(evaluated->signature().checksum)}});
  }
  say("data: " + task.data() +
      (options.data_dir.empty()
           ? "; generated by this program, since --data_dir is empty"
           : ""));

  if (!options.save_weights.empty() && processes.rank() == 0) {
    std::filesystem::create_directories(options.save_weights);  // fails early
  }
  const ExportedFile* const file = task.source().file();
  if (file && !file->signature().uncut_reason.empty()) {
    say("--model=" + options.model +
        " is a single layer: " + file->signature().uncut_reason);
  }

  SavedRun saved(
      options, processes.rank(), processes.ranks(),
      [&](const std::string& mine) { return processes.all_gather(mine); },
      print);
  const auto before = saved.flags();
  EngineParts parts;
  FlagValues flags = flags_of_run(options, task, before, parts, say);

  if (!options.plan.empty()) StepMemory::count_cpu_tensors();
  torch::manual_seed(options.seed);
  const bool reads_parts = options.distributed && file;
  parts.model = reads_parts ? without_values(task) : task.model();
  const Precision precision = precision_of(options.precision);
  std::function<void(ExportedModel&)> load_part;
  bool reads_weights = true;  // from the exported program
  std::string base;           // of the adapters
  // Run checkpoints of adapters do not have the weights.
  if ((!before || trains_adapters(options)) && !options.weights.empty()) {
    InitialWeights loaded = load_initial_weights(
        parts.model, task.source(), options.weights, options.weights_skip,
        options.weights_entry, options.weights_dtype);
    check_same(
        {{"--weights", "of checksum " + std::to_string(loaded.checksum)}});
    say(loaded.line);
    base = "--weights of checksum " + std::to_string(loaded.checksum) + ", ";
    load_part = std::move(loaded.load_part);
    reads_weights = !loaded.sets_all;
  }
  if (trains_adapters(options)) {
    base += file ? "--model with weights of checksum " +
                       std::to_string(file->weights_checksum())
                 : "--model with initial weights of the seed";
    const FlagValues of_base = {{"the base of the adapters", base}};
    if (before) check_fixed_flags(*before, of_base, options.run_dir);
    flags.insert(of_base.begin(), of_base.end());
    check_same({{"--adapter",
                 "of checksum " + std::to_string(adapter_checksum(options))}});
  }
  if (!before && file) {
    // Processes read copies of the file. The checksum of the flag --model does
    // not include the weights.
    check_same({{"--model", "with weights of checksum " +
                                std::to_string(file->weights_checksum())}});
  }
  if (reads_parts) {
    parts.make =
        adapted_layers(*file, reads_weights, std::move(load_part), options);
  }
  if (evaluated) add_eval_model(*evaluated, options, reads_parts, parts);
  precision.convert(parts.model);
  add_adapters(parts.model, options);
  // If the model has no values, only names and shapes are compared.
  load_adapter(parts.model, options, /*whole=*/true);
  const LayerNames names = layer_names(parts.model);
  parts.precision = precision;
  parts.input = [&](int64_t rows) {
    return precision.prepare(task.train_batch(0, {0, rows}));
  };
  const auto engine = make_engine(processes, options, std::move(parts));
  if (!engine->plan().empty()) say(engine->plan());
  flags[kBalance] = absl::StrJoin(engine->module().balance(), ",");
  say("layers per stage: " + flags[kBalance]);

  const auto optimizer =
      make_optimizer(options, engine->module().optimizer_parameters());
  if (options.shard_optimizer) check_shardable(*optimizer);
  // The number of random values drawn so far differs between runs.
  torch::manual_seed(data::mix_seed(options.seed, 1));
  Loop loop(options, task, *engine, *optimizer, saved, std::move(flags), names,
            print, on_evaluation);
  const int code = loop.run();
  if (code == kDone && !options.save_weights.empty()) {
    say(save_weights(options, *engine, task.source()));
  }
  return code;
}

int run(const Options& options, const Print& print) {
  const auto task = make_task(options);
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

}  // namespace gpipe::train_program
