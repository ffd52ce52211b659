#include "benchmarks/harness/speed.h"

#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>

// After LibTorch's headers, which define the same macros unless glog has.
#include <gflags/gflags.h>
#include <glog/logging.h>

#include "benchmarks/harness/devices.h"
#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/output.h"
#include "benchmarks/harness/parse.h"
#include "benchmarks/harness/settings.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/throughput.h"
#include "benchmarks/harness/trainee.h"

DEFINE_string(experiment, "all",
              "Which experiments, separated by commas, or all.");
DEFINE_int64(skip_epochs, -1,
             "Epochs at the beginning that warm up and do not count. -1: the "
             "experiment's.");
DEFINE_string(scale, "auto",
              "paper: the published sizes; small: minutes on a CPU; auto: "
              "paper where there is an accelerator, else small.");

namespace gpipe::benchmarks {
namespace {

// What all rows of a run share.
struct Run {
  const SpeedBenchmark& benchmark;
  const Workload& workload;
  Settings settings;
  int64_t epochs;
  int64_t skip_epochs;
  Balancer balancer;
};

bool is_small(const Settings& settings) {
  const size_t scale =
      parse_choice("scale", FLAGS_scale, {"auto", "paper", "small"});
  if (scale != 0) return scale == 2;
  return std::all_of(settings.devices.begin(), settings.devices.end(),
                     [](const c10::Device& device) { return device.is_cpu(); });
}

void log_settings(const Experiment& experiment, const Trainee& trainee) {
  std::string text = experiment.name +
                     " | batch size: " + std::to_string(experiment.batch_size);
  if (experiment.partitions > 0) {
    text += ", chunks: " + std::to_string(experiment.chunks) + ", balance: [" +
            join(experiment.balance) +
            "], checkpoint: " + to_string(experiment.checkpoint);
  }
  if (!trainee.threads.empty()) text += ", threads: " + trainee.threads;
  LOG(INFO) << text;
}

struct Measured {
  Experiment experiment;  // with the balance that was used
  std::string threads;
  std::vector<Duration> durations;
};

Measured measure(Run* run, Experiment experiment) {
  const auto& workload = run->workload;
  const auto& devices = run->settings.devices;
  torch::manual_seed(run->settings.seed);
  torch::nn::Sequential model = run->benchmark.model();
  at::Tensor input = workload.input(experiment.batch_size);
  at::Tensor target = workload.target(experiment.batch_size);
  if (experiment.partitions > 0 && experiment.balance.empty()) {
    // Of ceil(batch / chunks) rows, as torch::chunk makes them.
    const int64_t rows =
        (experiment.batch_size + experiment.chunks - 1) / experiment.chunks;
    const at::Tensor sample = input.narrow(0, 0, rows).to(devices.front());
    experiment.balance =
        run->balancer.balance(experiment.partitions, model, sample,
                              threads_per_partition(experiment.partitions));
  }
  Trainee trainee = make_trainee(model, experiment, devices);
  input = input.to(trainee.devices.front());
  target = target.to(trainee.devices.back());
  log_settings(experiment, trainee);

  torch::optim::SGD optimizer(
      trainee.parameters,
      torch::optim::SGDOptions(run->benchmark.learning_rate));
  const auto step = [&](int64_t rows) {
    const at::Tensor output = trainee.forward(input.narrow(0, 0, rows));
    run->benchmark.loss(output, target.narrow(0, 0, rows)).backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  const Epochs epochs{workload.samples_per_epoch, experiment.batch_size,
                      run->epochs, run->skip_epochs};
  auto durations = time_epochs(experiment.name, epochs, trainee.devices, step);
  return {experiment, trainee.threads, std::move(durations)};
}

// Samples per second of each epoch.
std::vector<double> speeds(const Workload& workload,
                           const std::vector<Duration>& durations) {
  std::vector<double> speeds;
  for (const Duration& duration : durations) {
    speeds.push_back(static_cast<double>(workload.samples_per_epoch) /
                     duration.wall_seconds);
  }
  return speeds;
}

std::vector<std::string> column_names(const SpeedBenchmark& benchmark) {
  std::vector<std::string> names{"batch",        "chunks",      "balance",
                                 "checkpoint",   "CPU threads", "samples/s",
                                 "+- samples/s", "s/epoch",     "speed-up"};
  names.insert(names.end(), benchmark.published_columns.begin(),
               benchmark.published_columns.end());
  return names;
}

Row make_row(const Workload& workload, const Measured& measured,
             std::optional<double>* baseline) {
  const Experiment& experiment = measured.experiment;
  Row row;
  row.name = experiment.name;
  row.durations = measured.durations;
  const bool piped = experiment.partitions > 0;
  row.cells = {experiment.batch_size, piped ? Cell(experiment.chunks) : Cell(),
               piped ? Cell(join(experiment.balance)) : Cell(),
               piped ? Cell(to_string(experiment.checkpoint)) : Cell(),
               measured.threads.empty() ? Cell() : Cell(measured.threads)};
  if (measured.durations.empty()) {
    row.cells.resize(row.cells.size() + 4);
  } else {
    const auto values = speeds(workload, measured.durations);
    const double speed = mean(values);
    if (experiment.name == "baseline") *baseline = speed;
    row.cells.emplace_back(speed, 3);
    row.cells.emplace_back(deviation(values), 3);
    row.cells.emplace_back(
        static_cast<double>(workload.samples_per_epoch) / speed, 3);
    row.cells.emplace_back(
        *baseline ? std::optional<double>(speed / **baseline) : std::nullopt,
        3);
  }
  for (const auto& figure : experiment.published) {
    row.cells.emplace_back(figure, 3);
  }
  return row;
}

void log_lines(const std::string& text) {
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    LOG(INFO) << text.substr(at, end - at);
    at = end + 1;
  }
}

std::vector<std::string> notes_for(const Run& run, bool small) {
  const Workload& workload = run.workload;
  std::vector<std::string> notes;
  notes.push_back((small ? "Reduced: " : "As published: ") + workload.text +
                  ", " + std::to_string(workload.samples_per_epoch) +
                  " samples per epoch; epochs " +
                  std::to_string(run.skip_epochs + 1) + " to " +
                  std::to_string(run.epochs) +
                  ". Mean and standard deviation over epochs.");
  if (run.settings.devices.front().is_cpu()) {
    notes.push_back(
        "On CPUs: all partitions share the " +
        std::to_string(at::get_num_threads()) +
        " threads that the baseline has for itself, so that a speed-up of 1 "
        "would be a pipeline without cost; recomputing alone takes about a "
        "third more work.");
  }
  if (small) {
    notes.push_back(
        "Published figures are of other machines and sizes; they stand here "
        "for comparison of the ratios.");
  }
  return notes;
}

void check_balance(const Settings& settings,
                   const std::vector<Experiment>& experiments) {
  if (settings.balance.empty()) return;
  std::set<size_t> partitions;
  for (const auto& experiment : experiments) {
    partitions.insert(static_cast<size_t>(experiment.partitions));
  }
  if (partitions.count(settings.balance.size()) == 0) {
    throw std::invalid_argument(
        "--balance=" + join(settings.balance) + ": no chosen experiment has " +
        std::to_string(settings.balance.size()) + " partitions");
  }
}

int run_table(const SpeedBenchmark& benchmark) {
  check_format();
  const Settings settings = parse_settings();
  const bool small = is_small(settings);
  const Workload& workload = small ? benchmark.small : benchmark.paper;
  const auto experiments =
      select_experiments(workload.experiments, FLAGS_experiment);
  check_balance(settings, experiments);
  Run run{benchmark,
          workload,
          settings,
          settings.epochs.value_or(workload.epochs),
          FLAGS_skip_epochs < 0 ? workload.skip_epochs : FLAGS_skip_epochs,
          {}};
  if (run.skip_epochs >= run.epochs) {
    throw std::invalid_argument(
        "--skip_epochs=" + std::to_string(run.skip_epochs) +
        " leaves none of " + std::to_string(run.epochs) + " epochs to measure");
  }

  const Environment environment = describe_environment();
  log_lines(environment.to_string());
  Table table;
  table.title = benchmark.title;
  table.columns = column_names(benchmark);
  table.notes = notes_for(run, small);
  if (const auto warning = environment.warning(); !warning.empty()) {
    table.notes.push_back(warning);
  }
  for (const auto& note : table.notes) LOG(INFO) << note;
  std::optional<double> baseline;
  bool failed = false;
  bool ran = false;
  for (const auto& chosen : experiments) {
    const Experiment experiment = apply(settings, chosen);
    Measured measured{experiment, "", {}};
    std::string error;
    try {
      measured = measure(&run, experiment);
      ran = true;
    } catch (const MissingDevices& missing) {
      error = missing.what();
    } catch (const std::exception& exception) {
      error = describe(exception);
      failed = true;
    }
    if (!error.empty()) LOG(WARNING) << experiment.name << " | " << error;
    table.rows.push_back(make_row(workload, measured, &baseline));
    table.rows.back().error = error;
    release_memory();
  }
  print_table(table, benchmark.program.name, environment);
  return failed || !ran ? kFailed : kOk;
}

}  // namespace

int run_speed(int argc, char** argv, const SpeedBenchmark& benchmark) {
  return run_program(argc, argv, benchmark.program,
                     [&] { return run_table(benchmark); });
}

}  // namespace gpipe::benchmarks
