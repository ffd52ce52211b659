#include "training/program/run.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <gflags/gflags.h>
#include <torch/utils.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/base/devices.h"
#include "gpipe/base/program.h"
#include "gpipe/base/run_main.h"
#include "gpipe/base/text.h"
#include "gpipe/distributed/world_options.h"
#include "gpipe/meta.h"
#include "gpipe/schedule/microbatches.h"
#include "models/exported/exported.h"
#include "models/weights/run_shard.h"
#include "models/weights/state_dict.h"
#include "training/data/random.h"
#include "training/kineto.h"
#include "training/program/engine.h"
#include "training/program/generate.h"
#include "training/program/loop.h"
#include "training/program/model_source.h"
#include "training/program/saved_run.h"
#include "training/program/step.h"
#include "training/program/weights.h"
#include "training/shardable.h"

DECLARE_bool(help);  // gflags' own

namespace gpipe::train_program {
namespace {

constexpr char kBalance[] = "balance";

// Throws c10::ValueError if an option has a value that --plan replaces or does
// not use, or if one is for --plan=auto alone.
void check_plan(const Options& options) {
  TORCH_CHECK_VALUE(options.plan_memory_gib >= 0,
                    "--plan_memory_gib=", options.plan_memory_gib,
                    ": must not be negative; 0 means no limit");
  TORCH_CHECK_VALUE(options.plan_memory_gib == 0 || options.plan == "auto",
                    "--plan_memory_gib=", options.plan_memory_gib,
                    ": is for --plan=auto, not --plan=", options.plan);
  if (options.plan.empty()) return;
  const Options defaults;
  const auto check_default = [&](const char* name, const auto& value,
                                 const auto& initial) {
    TORCH_CHECK_VALUE(value == initial, "--", name, "=", value,
                      ": is chosen by --plan=", options.plan,
                      "; leave out one of both flags");
  };
  check_default("balance", options.balance, defaults.balance);
  check_default("chunks", options.chunks, defaults.chunks);
  check_default("schedule", options.schedule, defaults.schedule);
  check_default("stages_per_rank", options.stages_per_rank,
                defaults.stages_per_rank);
  check_default("checkpoint", options.checkpoint, defaults.checkpoint);
  if (options.plan == "auto") {
    TORCH_CHECK_VALUE(
        options.offload == "none" || options.offload == "auto",
        "--offload=", options.offload,
        ": must be none or auto with --plan=auto, which chooses the rest");
  } else {
    check_default("offload", options.offload, defaults.offload);
  }
}

// Returns the path of --kineto in each of `ranks` processes: "trace-2.json" for
// "trace.json" and rank 2. A single process uses the path itself.
std::vector<std::string> kineto_paths(const std::string& path, int ranks) {
  std::vector<std::string> paths(ranks, path);
  if (ranks == 1 || path.empty()) return paths;
  const std::filesystem::path whole(path);
  const auto stem = whole.parent_path() / whole.stem();
  for (int rank = 0; rank < ranks; ++rank) {
    paths[rank] =
        absl::StrCat(stem.string(), "-", rank, whole.extension().string());
  }
  return paths;
}

// Returns `options` with the path of --kineto of this process. Throws
// c10::ValueError if a trace of any process would replace another file of the
// run, and std::invalid_argument if the variables of the launcher are wrong.
Options with_own_kineto(Options options) {
  const WorldOptions world =
      options.distributed ? WorldOptions::from_environment() : WorldOptions();
  const auto kineto = kineto_paths(options.kineto, world.size);
  FlagPaths written{{"trace", options.trace}};
  for (const std::string& each : kineto) written.emplace_back("kineto", each);
  with_value_error([&] {
    check_output_files(
        written,
        {{"model", options.model},
         {"data_dir", options.data_dir},
         {"eval_model", options.eval_model},
         {"adapter", options.adapter},
         {"weights", options.weights},
         {"save_weights", options.save_weights},
         {"plan", options.plan},
         {"run_dir",
          options.run_dir.empty() ? "" : options.run_dir + "/metrics.csv"}});
    return 0;
  });
  options.kineto = kineto[world.rank];
  return options;
}

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
  check_at_least("trace_step", options.trace_step, 1);
  check_at_least("threads", options.threads, 0);
  TORCH_CHECK_VALUE(options.threads <= std::numeric_limits<int>::max(),
                    "--threads=", options.threads, ": must be at most ",
                    std::numeric_limits<int>::max());
  check_at_least("keep", options.keep, 1);
  check_at_least("save_every", options.save_every, 0);
  check_at_least("eval_every", options.eval_every, -1);
  const std::string& resume = options.resume;
  TORCH_CHECK_VALUE(!options.run_dir.empty() || resume.empty() ||
                        resume == "none" || resume == "auto",
                    "--resume=", resume,
                    ": needs --run_dir, which contains the saved steps");
  check_at_least("shard_size", options.shard_size, 1);
  check_plan(options);
  TORCH_CHECK_VALUE(options.clip >= 0, "--clip=", options.clip,
                    ": must not be negative");
}

// Returns some layers of a file, with adapters if they are trained.
torch::nn::Sequential layers_of(const ExportedFile& file,
                                const Options& options, int64_t first,
                                int64_t count) {
  const torch::nn::Sequential layers = file.read(first, count).layers;
  add_adapters(layers, options);
  return layers;
}

// Sets the parts that evaluate another file. Each process reads its own layers
// only if it makes only its own layers of the model.
void add_eval_model(const ExportedFile& file, const Options& options,
                    EngineParts& parts) {
  if (!parts.make) {
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
  const Options options = with_own_kineto(with_adapter_options(given_options));
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
  for (const std::string& line : unused_flags(options, task.source())) {
    say(line);
  }

  if (!options.save_weights.empty()) {  // fails early
    internal::share_folder(options.save_weights,
                           processes.shard("--save_weights"));
  }
  const ExportedFile* const file = task.source().file();
  if (file && !file->signature().uncut_reason.empty()) {
    say("--model=" + options.model +
        " is a single layer: " + file->signature().uncut_reason);
  }

  SavedRun saved(options, processes, print);
  const auto before = saved.flags();
  EngineParts parts;
  FlagValues flags = flags_of_run(options, task, before, parts, say);

  if (!options.plan.empty()) StepMemory::count_cpu_tensors();
  torch::manual_seed(options.seed);
  LoadedModel loaded = load_model(
      options, task.source(), [&] { return task.model(); },
      /*resumes=*/before.has_value(), check_same, say);
  if (trains_adapters(options)) {
    const FlagValues base = {{"the base of the adapters", loaded.base},
                             {"--weights_skip", options.weights_skip}};
    if (before) check_fixed_flags(*before, base, options.run_dir);
    flags.insert(base.begin(), base.end());
  }
  parts.model = std::move(loaded.layers);
  parts.make = std::move(loaded.make);
  if (evaluated) add_eval_model(*evaluated, options, parts);
  const LayerNames names = layer_names(parts.model);
  const Precision precision = precision_of(options.precision);
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
  // A run whose result cannot be saved ends before its training.
  saved.check(*engine, flags);
  check_save_weights(options, *engine, task.source());
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

int run_program(int argc, char** argv, const std::string& name,
                const std::string& usage,
                const std::function<void()>& print_help,
                const std::function<int()>& body) {
  try {
    begin_program();
    gflags::SetUsageMessage(usage);
    gflags::ParseCommandLineNonHelpFlags(&argc, &argv, /*remove_flags=*/true);
    if (FLAGS_help) {
      print_help();
      return kDone;
    }
    gflags::HandleCommandLineHelpFlags();  // --helpfull, --version, ...
    TORCH_CHECK_VALUE(argc == 1, argv[1], ": options are --name=value");
    return body();
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error_text(error) << "\n";
    return is_of_user(error) ? kWrongFlags : kFailed;
  }
}

}  // namespace gpipe::train_program
