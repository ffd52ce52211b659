#include "benchmarks/harness/run_options.h"

#include <c10/core/Device.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

// After LibTorch's headers, which define the same macros unless glog has.
#include <gflags/gflags.h>

#include "benchmarks/harness/links.h"
#include "gpipe/meta.h"

DECLARE_bool(distributed);

DEFINE_string(experiment, "all",
              "Which experiments, separated by commas, or all of those above.");
DEFINE_string(mode, "auto",
              "Where the numbers come from. measure: training on --devices; "
              "simulate: times of the layers on one device, and the simulator; "
              "dry_run: training without memory, where all that is asked for "
              "is counted; auto: dry_run for a memory table that there are too "
              "few accelerators for, else measure.");
DEFINE_string(scale, "auto",
              "paper: the published sizes; small: minutes on a CPU; auto: "
              "small where it is measured without an accelerator, else paper.");
DEFINE_int64(skip_epochs, -1,
             "Epochs at the beginning that warm up and do not count. -1: the "
             "experiment's, as far as --epochs leaves one to measure.");
DEFINE_bool(same_batch, false,
            "Give every row the mini-batch of the base (or --batch_size), so "
            "that speeds differ by the pipeline alone. Papers give each row "
            "the largest that fits.");
DEFINE_bool(control, false,
            "Add rows that work as those with a pipeline do, in micro-batches "
            "with recomputing, but have one partition: what a pipeline adds, "
            "apart from what checkpointing costs.");
DEFINE_bool(dry_run, false,
            "Print what would be run and how, and run nothing. (The mode that "
            "needs no memory is --mode=dry_run.)");
DEFINE_bool(env, false, "Print what this machine and this build are, and end.");
DEFINE_double(link_latency, gpipe::benchmarks::SimulateOptions().latency,
              "Of --mode=simulate: seconds until a copy begins to arrive.");
DEFINE_double(link_bandwidth, gpipe::benchmarks::SimulateOptions().bandwidth,
              "Of --mode=simulate: bytes per second between two devices. 0: "
              "unlimited. The default is of PCI Express 3.0.");
DEFINE_bool(measure_links, false,
            "Of --mode=simulate: measure the link between the first two "
            "--devices in place of the two flags.");
DEFINE_double(device_speed, gpipe::benchmarks::SimulateOptions().device_speed,
              "Of --mode=simulate: how much faster a simulated device is than "
              "the first of --devices. 0: as fast as published.");
DEFINE_int64(profile_rows, gpipe::benchmarks::SimulateOptions().profile_rows,
             "Of --mode=simulate: samples to time the layers with, at most.");
DEFINE_double(profile_seconds,
              gpipe::benchmarks::SimulateOptions().profile_seconds,
              "Of --mode=simulate: about how long to time them.");

namespace gpipe::benchmarks {
namespace {

int64_t most_partitions(const std::vector<Experiment>& experiments) {
  int64_t most = 1;
  for (const auto& experiment : experiments) {
    most = std::max(most, experiment.partitions);
  }
  return most;
}

// So that a wrong --balance is told before the work, and in every mode.
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

// -1 for the workload's.
int64_t parse_skip_epochs(int64_t of_workload, const RunOptions& options) {
  if (FLAGS_skip_epochs < -1) {
    throw std::invalid_argument(
        "--skip_epochs=" + std::to_string(FLAGS_skip_epochs) +
        ": expected a number of epochs, or -1 for the experiment's");
  }
  if (FLAGS_skip_epochs < 0) return std::min(of_workload, options.epochs - 1);
  if (options.mode == Mode::kMeasure && FLAGS_skip_epochs >= options.epochs) {
    throw std::invalid_argument(
        "--skip_epochs=" + std::to_string(FLAGS_skip_epochs) +
        " leaves none of " + std::to_string(options.epochs) +
        " epochs to measure");
  }
  return FLAGS_skip_epochs;
}

// Neither below 0 nor infinite nor NaN.
void check_number(const char* flag, double value) {
  if (std::isfinite(value) && value >= 0) return;
  throw std::invalid_argument("--" + std::string(flag) + "=" +
                              std::to_string(value) +
                              ": expected a number, 0 or above");
}

// Without measuring anything.
SimulateOptions parse_simulate_options(const Settings& settings) {
  SimulateOptions options;
  options.latency = FLAGS_link_latency;
  options.bandwidth = FLAGS_link_bandwidth;
  options.device_speed = FLAGS_device_speed;
  options.profile_rows = FLAGS_profile_rows;
  options.profile_seconds = FLAGS_profile_seconds;
  options.device = settings.devices.front();
  check_number("link_latency", options.latency);
  check_number("link_bandwidth", options.bandwidth);
  check_number("device_speed", options.device_speed);
  check_number("profile_seconds", options.profile_seconds);
  if (options.profile_rows < 1) {
    throw std::invalid_argument(
        "--profile_rows=" + std::to_string(options.profile_rows) +
        ": expected a number above 0");
  }
  if (FLAGS_measure_links && settings.devices.size() < 2) {
    throw std::invalid_argument(
        "--measure_links wants two devices, and there is one; give "
        "--link_latency and --link_bandwidth");
  }
  return options;
}

void measure_links(const Settings& settings, SimulateOptions* options) {
  const Link link = measure_link(settings.devices[0], settings.devices[1]);
  options->latency = link.latency;
  options->bandwidth = link.bandwidth;
}

}  // namespace

RunOptions parse_run_options(const Benchmark& benchmark) {
  RunOptions options;
  options.environment_only = FLAGS_env;
  options.plan_only = FLAGS_dry_run;
  options.settings = parse_settings();
  options.rows = {FLAGS_experiment, FLAGS_same_batch, FLAGS_control};

  const auto& devices = options.settings.devices;
  const auto accelerators =
      std::count_if(devices.begin(), devices.end(),
                    [](const c10::Device& device) { return !device.is_cpu(); });
  const auto chosen =
      select_experiments(benchmark.paper.experiments, FLAGS_experiment);
  options.mode = parse_mode(FLAGS_mode, benchmark.subject,
                            accelerators >= most_partitions(chosen));
  options.small = parse_scale(FLAGS_scale, options.mode, accelerators > 0);
  const Workload& workload = options.workload(benchmark);
  options.experiments = choose_rows(workload.experiments, benchmark.base,
                                    options.settings, options.rows);

  options.epochs = options.settings.epochs.value_or(workload.epochs);
  options.skip_epochs = parse_skip_epochs(workload.skip_epochs, options);
  check_balance(benchmark, options);
  options.simulate = parse_simulate_options(options.settings);
  const bool only_prints = options.plan_only || options.environment_only;
  if (FLAGS_measure_links && options.mode == Mode::kSimulate && !only_prints) {
    measure_links(options.settings, &options.simulate);
  }
  if (FLAGS_distributed && options.mode != Mode::kMeasure) {
    throw std::invalid_argument(
        "--distributed is for --mode=measure; this run "
        "is " +
        name_of(options.mode));
  }
  if (!only_prints) options.ranks = Ranks::connect();
  return options;
}

}  // namespace gpipe::benchmarks
