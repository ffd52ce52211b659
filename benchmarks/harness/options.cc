#include "benchmarks/harness/options.h"

#include <absl/strings/str_join.h>
#include <gflags/gflags.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>

#include "gpipe/base/devices.h"
#include "gpipe/base/program.h"
#include "gpipe/base/text.h"
#include "gpipe/meta.h"
#include "gpipe/schedule/microbatches.h"

DEFINE_string(devices, "",
              "Devices of the partitions: numbers of accelerators (0,1,2), or "
              "cpu. '': every accelerator or, if there is none, the CPU.");
DEFINE_int64(batch_size, 0,
             "Samples per mini-batch, the same in every row. 0: the "
             "experiment's.");
DEFINE_int64(chunks, 0, "Micro-batches per mini-batch. 0: the experiment's.");
DEFINE_string(balance, "",
              "Layers per partition (3,4), or auto: cut by measured time. '': "
              "the experiment's.");
DEFINE_string(checkpoint, "",
              "The micro-batches to recompute: always, except_last or never. "
              "'': the experiment's.");
DEFINE_int64(epochs, 0, "Number of epochs. 0: the experiment's.");
DEFINE_uint64(seed, 0, "Seed of the weights, the data and their order.");
DEFINE_bool(deterministic, false,
            "Use only kernels that give the same bits each time (slower on "
            "GPUs). An operator without such a kernel is an error.");

DEFINE_string(experiment, "all",
              "The experiments to run, separated by commas: names from the "
              "list above, or all.");
DEFINE_string(mode, "auto",
              "The way to get the numbers. measure: train on --devices; "
              "simulate: time the layers on one device and simulate the "
              "schedule; dry_run: train on meta tensors, which have no memory, "
              "and count the bytes; auto: measure; if there are too few "
              "accelerators, dry_run for a memory table and simulate for a "
              "timeline, which has no dry_run.");
DEFINE_string(scale, "auto",
              "paper: the published sizes; small: sizes that take minutes on a "
              "CPU; auto: small if measured without an accelerator, otherwise "
              "paper.");
DEFINE_int64(samples, 0,
             "Speed tables: samples per epoch, at least one mini-batch. 0: the "
             "experiment's.");
DEFINE_int64(skip_epochs, -1,
             "Number of warm-up epochs at the start that do not count. -1: the "
             "experiment's number, but at most --epochs minus 1.");
DEFINE_bool(same_batch, false,
            "Give every row the mini-batch of the base (or --batch_size), so "
            "that the pipeline is the only cause of a speed-up. Papers give "
            "each row the largest mini-batch that fits.");
DEFINE_bool(control, false,
            "Add control rows: one partition, with the micro-batches and the "
            "recomputing of a pipeline row. They separate the gain of the "
            "pipeline from the cost of checkpointing.");
DEFINE_bool(dry_run, false,
            "Print the experiments and their settings, and run nothing. (The "
            "mode that needs no memory is --mode=dry_run.)");
DEFINE_bool(env, false, "Print a description of the machine and the build.");
DEFINE_double(link_latency, gpipe::benchmarks::SimulateOptions().link.latency,
              "With --mode=simulate: seconds until a copy begins to arrive.");
DEFINE_double(link_bandwidth,
              gpipe::benchmarks::SimulateOptions().link.bandwidth,
              "With --mode=simulate: bytes per second between two devices. 0: "
              "unlimited. The default is that of PCI Express 3.0.");
DEFINE_bool(measure_links, false,
            "With --mode=simulate: measure the link between the first two of "
            "--devices, instead of using --link_latency and --link_bandwidth.");
DEFINE_double(device_speed, gpipe::benchmarks::SimulateOptions().device_speed,
              "With --mode=simulate: the speed of a simulated device, relative "
              "to the first of --devices. 0: the speed at which the base "
              "experiment is as fast as published.");
DEFINE_int64(profile_rows, gpipe::benchmarks::SimulateOptions().profile_rows,
             "With --mode=simulate: the largest number of samples to time the "
             "layers with.");
DEFINE_double(profile_seconds,
              gpipe::benchmarks::SimulateOptions().profile_seconds,
              "With --mode=simulate: approximate seconds to time the layers.");

DEFINE_bool(
    distributed, false,
    "With --mode=measure: run every partition in a process of its own. Start "
    "as many processes as partitions with //tools:launch, torchrun, srun "
    "or mpirun, all with the same flags.");
DEFINE_double(timeout, 60,
              "With --distributed: seconds to wait for another process. It "
              "must be longer than the slowest step of a row, and longer than "
              "a row that rank 0 measures alone.");

namespace gpipe::benchmarks {
namespace {

std::optional<int64_t> unless_zero(const char* flag, int64_t value) {
  if (value < 0) {
    internal::refuse("--", flag, "=", value,
                     ": expected a number above 0, or 0 for the "
                     "experiment's");
  }
  return value > 0 ? std::optional<int64_t>(value) : std::nullopt;
}

}  // namespace

Settings parse_settings() {
  Settings settings;
  settings.devices = parse_devices(FLAGS_devices);
  if (settings.devices.empty()) settings.devices = all_devices();
  settings.batch_size = unless_zero("batch_size", FLAGS_batch_size);
  settings.chunks = unless_zero("chunks", FLAGS_chunks);
  settings.balance_by_time = FLAGS_balance == "auto";
  if (!settings.balance_by_time) {
    settings.balance = parse_positive_list("balance", FLAGS_balance);
  }
  if (!FLAGS_checkpoint.empty()) {
    settings.checkpoint = parse_checkpoint(FLAGS_checkpoint);
  }
  settings.epochs = unless_zero("epochs", FLAGS_epochs);
  settings.seed = FLAGS_seed;
  settings.deterministic = FLAGS_deterministic;
  return settings;
}

void check_layers(const Settings& settings, int64_t layers) {
  int64_t left = layers;
  for (const int64_t entry : settings.balance) {
    // Subtracts instead of adding, since a sum of large entries could overflow.
    left -= entry;
    if (left < 0) break;
  }
  if (settings.balance.empty() || left == 0) return;
  internal::refuse("--balance=", absl::StrJoin(settings.balance, ","),
                   ": the model has ", layers,
                   " layers, and the numbers must add up to that");
}

void use_kernels(const Settings& settings) {
  if (settings.deterministic) use_deterministic_kernels();
}

Experiment apply(const Settings& settings, Experiment experiment) {
  experiment.batch_size = settings.batch_size.value_or(experiment.batch_size);
  if (experiment.partitions == 0) return experiment;
  experiment.chunks = settings.chunks.value_or(experiment.chunks);
  experiment.checkpoint = settings.checkpoint.value_or(experiment.checkpoint);
  if (settings.balance_by_time) experiment.balance.clear();
  if (static_cast<int64_t>(settings.balance.size()) == experiment.partitions) {
    experiment.balance = settings.balance;
  }
  return experiment;
}

namespace {

int64_t batch_size_of(const std::vector<Experiment>& all,
                      const std::string& name) {
  const auto found = std::ranges::find_if(
      all,
      [&](const Experiment& experiment) { return experiment.name == name; });
  if (found == all.end()) {
    internal::refuse("--same_batch: there is no experiment '", name,
                     "' to take it from; give --batch_size");
  }
  return found->batch_size;
}

void check_partitions(const Settings& settings,
                      const std::vector<Experiment>& rows) {
  const auto& balance = settings.balance;
  const bool fits =
      balance.empty() || std::ranges::any_of(rows, [&](const Experiment& row) {
        return row.partitions == static_cast<int64_t>(balance.size());
      });
  if (!fits) {
    internal::refuse("--balance=", absl::StrJoin(balance, ","),
                     ": no chosen experiment has ", balance.size(),
                     " partitions");
  }
}

// Returns the members that must be equal in two rows, so that the pipeline is
// the only cause of their ratio.
auto work_of(const Experiment& row) {
  return std::tie(row.batch_size, row.chunks, row.checkpoint, row.size);
}

}  // namespace

std::vector<Experiment> choose_rows(const std::vector<Experiment>& all,
                                    const std::string& base,
                                    const Settings& settings,
                                    const RowOptions& options) {
  auto rows = select_experiments(all, options.names);
  check_partitions(settings, rows);
  for (auto& row : rows) {
    if (options.same_batch) {
      row.batch_size = batch_size_of(all, row.base.empty() ? base : row.base);
    }
    row = apply(settings, std::move(row));
  }
  return options.control ? with_controls(std::move(rows)) : rows;
}

std::vector<Experiment> with_controls(std::vector<Experiment> rows) {
  std::vector<Experiment> controls;
  for (const auto& row : rows) {
    if (row.partitions < 2) continue;
    const auto serves = [&row](const Experiment& other) {
      return other.partitions == 1 && work_of(other) == work_of(row);
    };
    if (std::ranges::any_of(rows, serves) ||
        std::ranges::any_of(controls, serves)) {
      continue;
    }
    Experiment& control = controls.emplace_back(row);
    control.name = "checkpoint-only (" + row.name + ")";
    control.partitions = 1;
    control.balance.clear();
    control.published.clear();
  }
  if (controls.size() == 1) controls[0].name = "checkpoint-only";
  const auto behind_plain = std::ranges::find_if(
      rows, [](const Experiment& row) { return row.partitions > 0; });
  rows.insert(behind_plain, controls.begin(), controls.end());
  return rows;
}

namespace {

int64_t most_partitions(const std::vector<Experiment>& experiments) {
  int64_t most = 1;
  for (const auto& experiment : experiments) {
    most = std::max(most, experiment.partitions);
  }
  return most;
}

// Throws std::invalid_argument if --balance does not fit the model. Reports it
// before the work, and in every mode.
void check_balance(const Benchmark& benchmark, const RunOptions& options) {
  const auto& balance = options.settings.balance;
  if (balance.empty()) return;
  const MetaGuard meta;
  for (const auto& experiment : options.experiments) {
    if (experiment.balance != balance) continue;
    const auto layers = benchmark.model(experiment)->size();
    check_layers(options.settings, static_cast<int64_t>(layers));
  }
}

// Returns --skip_epochs or, if it is -1, the workload's number.
int64_t parse_skip_epochs(int64_t of_workload, const RunOptions& options) {
  if (FLAGS_skip_epochs < -1) {
    internal::refuse(
        "--skip_epochs=", FLAGS_skip_epochs,
        ": expected a number of epochs, or -1 for the experiment's");
  }
  if (FLAGS_skip_epochs < 0) return std::min(of_workload, options.epochs - 1);
  if (options.mode == Mode::kMeasure && FLAGS_skip_epochs >= options.epochs) {
    internal::refuse("--skip_epochs=", FLAGS_skip_epochs, " leaves none of ",
                     options.epochs, " epochs to measure");
  }
  return FLAGS_skip_epochs;
}

// Throws std::invalid_argument if `value` is negative, infinite or NaN.
void check_number(const char* flag, double value) {
  if (std::isfinite(value) && value >= 0) return;
  internal::refuse("--", flag, "=", std::to_string(value),
                   ": expected a number, 0 or above");
}

// Returns the options of a simulation. Measures nothing.
SimulateOptions parse_simulate_options(const Settings& settings) {
  SimulateOptions options;
  options.link = {FLAGS_link_latency, FLAGS_link_bandwidth};
  options.device_speed = FLAGS_device_speed;
  options.profile_rows = FLAGS_profile_rows;
  options.profile_seconds = FLAGS_profile_seconds;
  options.device = settings.devices.front();
  check_number("link_latency", options.link.latency);
  check_number("link_bandwidth", options.link.bandwidth);
  check_number("device_speed", options.device_speed);
  check_number("profile_seconds", options.profile_seconds);
  if (options.profile_rows < 1) {
    internal::refuse("--profile_rows=", options.profile_rows,
                     ": expected a number above 0");
  }
  if (FLAGS_measure_links && settings.devices.size() < 2) {
    throw std::invalid_argument(
        "--measure_links needs two devices, but there is one; give "
        "--link_latency and --link_bandwidth instead");
  }
  return options;
}

// Returns the processes of --distributed, null without it.
std::shared_ptr<World> connect() {
  if (!FLAGS_distributed) return nullptr;
  WorldOptions options = WorldOptions::from_environment();
  options.timeout = milliseconds_of(FLAGS_timeout);
  if (options.timeout.count() <= 0) {
    internal::refuse("--timeout=", std::to_string(FLAGS_timeout),
                     ": expected a number of seconds above 0");
  }
  return World::connect(options);
}

}  // namespace

RunOptions parse_run_options(const Benchmark& benchmark) {
  RunOptions options;
  options.environment_only = FLAGS_env;
  options.plan_only = FLAGS_dry_run;
  options.settings = parse_settings();
  options.rows = {FLAGS_experiment, FLAGS_same_batch, FLAGS_control};

  const auto& devices = options.settings.devices;
  const auto accelerators = std::ranges::count_if(
      devices, [](const c10::Device& device) { return !device.is_cpu(); });
  const auto chosen =
      select_experiments(benchmark.paper.experiments, FLAGS_experiment);
  options.mode = parse_mode(FLAGS_mode, benchmark.table_kind,
                            accelerators >= most_partitions(chosen));
  options.small = parse_scale(FLAGS_scale, options.mode, accelerators > 0);
  const Workload& workload = options.workload(benchmark);
  options.experiments = choose_rows(workload.experiments, benchmark.base,
                                    options.settings, options.rows);

  if (FLAGS_samples != 0 && benchmark.table_kind == TableKind::kMemory) {
    internal::refuse("--samples=", FLAGS_samples,
                     " is for speed tables; an epoch of a memory table is one "
                     "mini-batch, so give --batch_size");
  }
  options.samples =
      FLAGS_samples == 0 ? workload.samples_per_epoch : FLAGS_samples;
  options.epochs = options.settings.epochs.value_or(workload.epochs);
  options.skip_epochs = parse_skip_epochs(workload.skip_epochs, options);
  check_balance(benchmark, options);
  options.simulate = parse_simulate_options(options.settings);
  const bool only_prints = options.plan_only || options.environment_only;
  if (FLAGS_measure_links && options.mode == Mode::kSimulate && !only_prints) {
    options.simulate.link = measure_link(devices[0], devices[1]);
  }
  if (FLAGS_distributed && options.mode != Mode::kMeasure) {
    internal::refuse(
        "--distributed is for --mode=measure; this run "
        "is ",
        to_string(options.mode));
  }
  if (!only_prints) options.world = connect();
  return options;
}

}  // namespace gpipe::benchmarks
