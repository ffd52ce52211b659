// Measures pipelines of many small processes on one machine: how long they take
// to start, how many threads and connections each has, what an action costs
// beside the simulator's prediction, whether the bits are those of one process,
// and how soon all know that one has been killed.
//
//   ./bazelw run //benchmarks:many_ranks -- --ranks=2,8,32,128
//   ./bazelw run //benchmarks:many_ranks -- --ranks=32 --replicas=4
//
// Or how well their clocks are compared, although they read the same one:
//
//   ./bazelw run //benchmarks:many_ranks -- --ranks=2,8,32 --clocks=20 --busy=2
#include <gflags/gflags.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "benchmarks/harness/statistics.h"
#include "benchmarks/many_ranks/prediction.h"
#include "benchmarks/many_ranks/rank.h"
#include "benchmarks/many_ranks/training.h"
#include "gpipe/processes/processes.h"
#include "gpipe/program/flags.h"
#include "gpipe/schedule.h"
#include "gpipe/text/columns.h"
#include "gpipe/text/lists.h"
#include "gpipe/text/refuse.h"
#include "gpipe/text/units.h"

DEFINE_string(ranks, "2,8,32,128", "Numbers of processes, a list.");
DEFINE_int64(replicas, 1,
             "Number of pipelines; each has its part of the processes.");
DEFINE_int64(microbatches, 16, "Number of micro-batches of a step.");
DEFINE_int64(steps, 5, "Number of steps; the table shows the median.");
DEFINE_bool(kill, true, "Kill the process in the middle at the end.");
DEFINE_int64(clocks, 0,
             "Instead of training, compare the clocks so many times.");
DEFINE_int64(busy, 0, "Number of threads that keep cores busy meanwhile.");
DEFINE_bool(secret, false, "Give the processes a secret.");
DEFINE_bool(as_rank, false, "Used by this program for its processes.");

namespace gpipe::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
using Table = std::vector<std::vector<std::string>>;

// What the processes of one run have printed: the values of each word.
class Reports {
 public:
  void add(std::string_view line) {
    std::istringstream text{std::string(line)};
    std::string word;
    double value = 0;
    const std::lock_guard<std::mutex> lock(mutex_);
    while (text >> word >> value) values_[word].push_back(value);
  }

  std::vector<double> of(const std::string& word) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_[word];
  }

  // Blocks until `count` processes have printed `word`. Throws after a long
  // time.
  void wait_for(const std::string& word, std::size_t count) {
    const auto deadline = Clock::now() + std::chrono::minutes(10);
    while (of(word).size() < count) {
      if (Clock::now() > deadline) {
        throw std::runtime_error("only " + std::to_string(of(word).size()) +
                                 " of " + std::to_string(count) +
                                 " processes have reported '" + word + "'");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<double>> values_;
};

double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

std::string whole(double value) {
  return std::to_string(static_cast<int64_t>(value));
}

Training training() {
  return {FLAGS_replicas, FLAGS_microbatches, FLAGS_steps};
}

// A file with a secret, for as long as the object lives.
class SecretFile {
 public:
  SecretFile()
      : path_(std::filesystem::temp_directory_path() /
              ("many_ranks-" + std::to_string(::getpid()))) {
    std::ofstream(path_) << "a secret for a measurement on the loopback\n";
  }
  ~SecretFile() { std::filesystem::remove(path_); }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;

  std::string path() const { return path_.string(); }

 private:
  const std::filesystem::path path_;
};

// Threads that compute for as long as the object lives.
class BusyThreads {
 public:
  explicit BusyThreads(int64_t count) {
    for (int64_t k = 0; k < count; ++k) {
      threads_.emplace_back([this] {
        while (!is_over_) {
        }
      });
    }
  }
  ~BusyThreads() {
    is_over_ = true;
    for (auto& each : threads_) each.join();
  }
  BusyThreads(const BusyThreads&) = delete;
  BusyThreads& operator=(const BusyThreads&) = delete;

 private:
  std::atomic<bool> is_over_{false};
  std::vector<std::thread> threads_;
};

std::vector<Command> commands_of(int64_t ranks, const std::string& secret) {
  const std::string port = std::to_string(free_port());
  std::vector<Command> commands;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    commands.push_back(
        {"/proc/self/exe",
         {"--as_rank", "--replicas=" + std::to_string(FLAGS_replicas),
          "--microbatches=" + std::to_string(FLAGS_microbatches),
          "--steps=" + std::to_string(FLAGS_steps),
          "--clocks=" + std::to_string(FLAGS_clocks)},
         {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(ranks)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port},
          {"OMP_NUM_THREADS", "1"}}});
    if (FLAGS_secret) {
      commands.back().environment.push_back({"GPIPE_SECRET_FILE", secret});
    }
  }
  return commands;
}

// Returns a listener that adds lines to `reports`, and shows those of stderr.
Processes::OnLine listener_of(Reports& reports) {
  return [&reports](int rank, Stream stream, std::string_view line) {
    if (stream == Stream::kStdout) return reports.add(line);
    std::cerr << "rank " << rank << ": " << line << "\n";
  };
}

// What a run of the processes has measured.
struct Measured {
  double loaded = 0, connected = 0, threads = 0, store_connections = 0,
         connections = 0;
  double step = 0;
  double action_cpu = 0;  // CPU seconds of an action with its messages
  bool has_same_bits = false;
  std::string death;
};

// Returns whether the processes have the bits of one process.
bool has_same_bits(Reports& reports, int64_t ranks) {
  const auto expected =
      train_in_one_process(training(), ranks / FLAGS_replicas);
  const auto layers = reports.of("layer"), bits = reports.of("bits");
  for (std::size_t k = 0; k < layers.size(); ++k) {
    const auto layer = static_cast<std::size_t>(layers[k]);
    if (static_cast<uint32_t>(bits[k]) != expected.at(layer)) return false;
  }
  return layers.size() == static_cast<std::size_t>(ranks);
}

// Kills the process in the middle. Returns the time until all others know it.
std::string kill_one(Processes& processes, Reports& reports, int64_t ranks) {
  const double killed = seconds_now();
  processes.signal(static_cast<int>(ranks / 2), SIGKILL);
  reports.wait_for("failed", static_cast<std::size_t>(ranks - 1));
  const auto named = reports.of("names");
  if (std::any_of(named.begin(), named.end(), [&](double rank) {
        return rank != static_cast<double>(ranks / 2);
      })) {
    throw std::runtime_error("a process has named another rank");
  }
  return seconds_text(largest(reports.of("failed")) - killed);
}

Measured measure(int64_t ranks, bool kill) {
  Reports reports;
  const SecretFile secret;
  const double start = seconds_now();
  Processes processes(commands_of(ranks, secret.path()), listener_of(reports));
  reports.wait_for("median", static_cast<std::size_t>(ranks));
  Measured result;
  result.death = "-";
  if (kill && ranks > 1) {
    result.death = kill_one(processes, reports, ranks);
  } else {
    processes.signal_all(SIGTERM);
  }
  processes.wait_all(Clock::now() + std::chrono::minutes(1));
  result.loaded = largest(reports.of("loaded")) - start;
  result.connected =
      largest(reports.of("ready")) - largest(reports.of("loaded"));
  result.threads = largest(reports.of("threads"));
  result.store_connections = largest(reports.of("store_connections"));
  result.connections = largest(reports.of("connections"));
  result.step = largest(reports.of("median"));
  const auto actions = static_cast<double>(2 * FLAGS_microbatches * ranks);
  for (const double each : reports.of("cpu")) {
    result.action_cpu += each / actions;
  }
  result.has_same_bits = has_same_bits(reports, ranks);
  return result;
}

MessageCosts measure_costs() {
  const Measured one = measure(1, false), two = measure(2, false);
  const MessageCosts costs = message_costs(
      one.action_cpu, two.action_cpu, two.step, schedule_of(training(), 2));
  std::cout << "an action takes " << seconds_text(costs.action)
            << " of CPU, an end of a message " << seconds_text(costs.message)
            << ", and the latency is " << seconds_text(costs.latency) << "\n";
  return costs;
}

void measure_training(const std::vector<int64_t>& counts) {
  // The simulator knows pipelines without sums over replicas.
  const bool simulates = FLAGS_replicas == 1;
  const MessageCosts costs = simulates ? measure_costs() : MessageCosts();
  const auto simulated = [&](int64_t ranks) {
    if (!simulates) return std::string("-");
    return seconds_text(predicted_step(costs, schedule_of(training(), ranks),
                                       std::thread::hardware_concurrency()));
  };
  Table table = {{"processes", "loaded", "connected", "threads",
                  "connections of rank 0", "of others", "step", "simulated",
                  "per action", "CPU per action", "bits", "death known"}};
  for (const int64_t ranks : counts) {
    const Measured found = measure(ranks, FLAGS_kill);
    const auto actions = static_cast<double>(2 * FLAGS_microbatches * ranks);
    table.push_back({std::to_string(ranks), seconds_text(found.loaded),
                     seconds_text(found.connected), whole(found.threads),
                     whole(found.store_connections), whole(found.connections),
                     seconds_text(found.step), simulated(ranks),
                     seconds_text(found.step / actions),
                     seconds_text(found.action_cpu),
                     found.has_same_bits ? "equal" : "different", found.death});
  }
  std::cout << columns_text(table, "r");
}

void measure_clocks(const std::vector<int64_t>& counts) {
  Table table = {{"processes", "median error", "largest error", "median bound",
                  "largest bound", "errors above bound"}};
  for (const int64_t ranks : counts) {
    Reports reports;
    const SecretFile secret;
    const BusyThreads busy(FLAGS_busy);
    Processes processes(commands_of(ranks, secret.path()),
                        listener_of(reports));
    reports.wait_for("bound",
                     static_cast<std::size_t>((ranks - 1) * FLAGS_clocks));
    processes.wait_all(Clock::now() + std::chrono::minutes(1));
    std::vector<double> errors;
    for (const double offset : reports.of("offset")) {
      errors.push_back(std::abs(offset));
    }
    const auto bounds = reports.of("bound");
    int64_t above = 0;
    for (std::size_t k = 0; k < errors.size(); ++k) {
      if (errors[k] > bounds[k]) ++above;
    }
    table.push_back(
        {std::to_string(ranks), seconds_text(median(errors)),
         seconds_text(largest(errors)), seconds_text(median(bounds)),
         seconds_text(largest(bounds)),
         std::to_string(above) + " of " + std::to_string(errors.size())});
  }
  std::cout << columns_text(table, "r");
}

void run() {
  const std::vector<int64_t> counts = parse_positive_list("ranks", FLAGS_ranks);
  for (const int64_t ranks : counts) {
    if (FLAGS_replicas < 1 || ranks % FLAGS_replicas != 0) {
      internal::refuse("--replicas=", FLAGS_replicas, " does not divide ",
                       ranks, " processes");
    }
  }
  if (FLAGS_clocks > 0) return measure_clocks(counts);
  measure_training(counts);
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  try {
    if (!gpipe::read_flags(&argc, &argv,
                           "measures pipelines of many small processes",
                           "benchmarks/many_ranks")) {
      return 0;
    }
    if (FLAGS_as_rank && FLAGS_clocks > 0) {
      return gpipe::benchmarks::run_clock_rank(FLAGS_clocks);
    }
    if (FLAGS_as_rank) {
      return gpipe::benchmarks::run_rank(gpipe::benchmarks::training());
    }
    gpipe::benchmarks::run();
    return 0;
  } catch (const std::invalid_argument& error) {
    std::cerr << "many_ranks: " << error.what() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "many_ranks: " << error.what() << "\n";
    return 2;
  }
}
