// Measures pipelines of many small processes on one machine: how long they take
// to start, how many threads and connections each has, what an action costs,
// and how soon all know that one has been killed.
//
//   ./bazelw run //benchmarks:many_ranks -- --ranks=2,8,32,128
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/many_ranks/rank.h"
#include "gpipe/processes/processes.h"
// Must follow LibTorch's headers, which define the same macros if glog has not.
#include <gflags/gflags.h>

#include "gpipe/program/flags.h"
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
  return *std::max_element(values.begin(), values.end());
}

std::string whole(double value) {
  return std::to_string(static_cast<int64_t>(value));
}

std::vector<std::string> measure(int64_t ranks) {
  const std::string port = std::to_string(free_port());
  std::vector<Command> commands;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    commands.push_back(
        {"/proc/self/exe",
         {"--as_rank", "--replicas=" + std::to_string(FLAGS_replicas),
          "--microbatches=" + std::to_string(FLAGS_microbatches),
          "--steps=" + std::to_string(FLAGS_steps)},
         {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(ranks)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port},
          {"OMP_NUM_THREADS", "1"}}});
  }
  Reports reports;
  const double start = seconds_now();
  Processes processes(commands,
                      [&](int rank, Stream stream, std::string_view line) {
                        if (stream == Stream::kStdout) return reports.add(line);
                        std::cerr << "rank " << rank << ": " << line << "\n";
                      });
  const auto count = static_cast<std::size_t>(ranks);
  reports.wait_for("median", count);
  std::string heard = "-";
  if (FLAGS_kill && ranks > 1) {
    const double killed = seconds_now();
    processes.signal(static_cast<int>(ranks / 2), SIGKILL);
    reports.wait_for("failed", count - 1);
    heard = seconds_text(largest(reports.of("failed")) - killed);
    const auto named = reports.of("names");
    if (std::any_of(named.begin(), named.end(), [&](double rank) {
          return rank != static_cast<double>(ranks / 2);
        })) {
      throw std::runtime_error("a process has named another rank");
    }
  } else {
    processes.signal_all(SIGTERM);
  }
  processes.wait_all(Clock::now() + std::chrono::minutes(1));
  const double step = largest(reports.of("median"));
  const double actions = 2.0 * static_cast<double>(FLAGS_microbatches * ranks);
  return {std::to_string(ranks),
          seconds_text(largest(reports.of("loaded")) - start),
          seconds_text(largest(reports.of("ready")) -
                       largest(reports.of("loaded"))),
          whole(largest(reports.of("threads"))),
          whole(largest(reports.of("store_connections"))),
          whole(largest(reports.of("connections"))),
          seconds_text(step),
          seconds_text(step / actions),
          heard};
}

void run() {
  Table table = {{"processes", "loaded", "connected", "threads",
                  "connections of rank 0", "of others", "step", "per action",
                  "death known"}};
  for (const int64_t ranks : parse_positive_list("ranks", FLAGS_ranks)) {
    if (FLAGS_replicas < 1 || ranks % FLAGS_replicas != 0) {
      internal::refuse("--replicas=", FLAGS_replicas, " does not divide ",
                       ranks, " processes");
    }
    table.push_back(measure(ranks));
  }
  for (const std::string& line :
       align_columns(table, std::string(table[0].size(), 'r'))) {
    std::cout << line << "\n";
  }
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
    if (FLAGS_as_rank) {
      return gpipe::benchmarks::run_rank(
          {FLAGS_replicas, FLAGS_microbatches, FLAGS_steps});
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
