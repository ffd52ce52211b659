// The time of a step with several schedules on two cores, compared with the
// plain model on one core and, if asked for, with torch.distributed.pipelining
// in two processes. The steps take turns.

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <gflags/gflags.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/harness/output.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/table.h"
#include "benchmarks/harness/throughput.h"
#include "benchmarks/peers/peer_model.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"

DEFINE_int64(rounds, 9,
             "Number of rounds. Each runs one step of each kind; the table "
             "shows medians.");
DEFINE_int64(microbatches, 4, "Micro-batches per step.");
DEFINE_string(python, "",
              "Path of a Python with torch. Adds rows for "
              "torch.distributed.pipelining, run by --peer.");
DEFINE_string(peer, "benchmarks/peers/worker.py",
              "The peer's program, relative to this project's folder.");

namespace gpipe::benchmarks {
namespace {

constexpr int64_t kPartitions = 2;
constexpr uint64_t kSeed = 0;

// A model and its sizes.
struct Kind {
  std::string model;  // one of subject_names()
  PeerModelSizes sizes;
};

// A process of the peer's program. It runs a step for every line that it reads.
class Peer {
 public:
  Peer(const Kind& kind, int64_t layers, const std::string& schedule) {
    const std::string half = std::to_string(layers / kPartitions);
    const std::vector<std::string> words = {
        FLAGS_python,
        FLAGS_peer,
        "--engine=pipelining-" + schedule,
        "--model=" + kind.model,
        "--batch=" + std::to_string(kind.sizes.batch),
        "--depth=" + std::to_string(kind.sizes.depth),
        "--width=" + std::to_string(kind.sizes.width),
        "--side=" + std::to_string(kind.sizes.side),
        "--balance=" + half + "," + half,
        "--microbatches=" + std::to_string(FLAGS_microbatches),
        "--learning_rate=0"};
    std::vector<char*> arguments;
    for (const auto& word : words) {
      arguments.push_back(const_cast<char*>(word.c_str()));
    }
    arguments.push_back(nullptr);
    // Close-on-exec: if another peer inherited these pipes, this one would
    // never read the end of its input.
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) {
      throw std::runtime_error("cannot make a pipe for the peer");
    }
    child_ = fork();
    if (child_ < 0)
      throw std::runtime_error("cannot start a process for the peer");
    if (child_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      execvp(arguments[0], arguments.data());
      std::_Exit(127);
    }
    close(to[0]);
    close(from[1]);
    to_ = fdopen(to[1], "w");
    from_ = fdopen(from[0], "r");
    answer();  // blocks until the peer is ready
  }
  ~Peer() {
    std::fclose(to_);  // the peer exits at the end of its input
    std::fclose(from_);
    waitpid(child_, nullptr, 0);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Runs a step and returns its seconds.
  double step() {
    std::fputs("step\n", to_);
    std::fflush(to_);
    return std::stod(answer());
  }

 private:
  // Blocks until the peer has written a line, and returns it.
  std::string answer() {
    std::string line;
    for (int c = 0; (c = std::fgetc(from_)) != '\n';
         line += static_cast<char>(c)) {
      if (c == EOF) {
        throw std::runtime_error("the peer (" + FLAGS_python + " " +
                                 FLAGS_peer +
                                 ") gave no answer; see its output above");
      }
    }
    return line;
  }

  pid_t child_;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

// Runs a step and returns its seconds.
using Step = std::function<double()>;

double seconds_of(const std::function<void()>& work) {
  return time_of(work).wall_seconds;
}

Step sequential(const Kind& kind) {
  auto subject = make_peer_model(kind.model, kind.sizes, kSeed);
  return [=]() mutable {
    return seconds_of([&] {
      subject.model->zero_grad();
      const auto x = subject.input.chunk(FLAGS_microbatches);
      const auto y = subject.target.chunk(FLAGS_microbatches);
      for (int64_t i = 0; i < FLAGS_microbatches; ++i) {
        const double part = 1.0 / static_cast<double>(FLAGS_microbatches);
        (subject.loss(subject.model->forward(x[i]), y[i]) * part).backward();
      }
    });
  };
}

GPipe pipeline_of(const PeerModel& subject) {
  const auto half = static_cast<int64_t>(subject.model->size()) / kPartitions;
  return GPipe(subject.model,
               GPipeOptions({half, half})
                   .devices(std::vector<torch::Device>(kPartitions, at::kCPU))
                   .chunks(FLAGS_microbatches)
                   .checkpoint(Checkpoint::kNever)
                   .threads_per_partition(1));
}

Step forward_and_backward(const Kind& kind) {
  const auto subject = make_peer_model(kind.model, kind.sizes, kSeed);
  auto pipeline = pipeline_of(subject);
  return [=]() mutable {
    return seconds_of([&] {
      pipeline->zero_grad();
      subject.loss(pipeline->forward(subject.input), subject.target).backward();
    });
  };
}

Step by(const std::string& name, const Kind& kind) {
  const auto subject = make_peer_model(kind.model, kind.sizes, kSeed);
  auto pipeline = pipeline_of(subject);
  const Schedule schedule = named_schedule(
      name, kPartitions, static_cast<int>(FLAGS_microbatches), 1);
  return [=]() mutable {
    return seconds_of([&] {
      pipeline->zero_grad();
      pipeline->train_step(subject.input, subject.target, subject.loss,
                           schedule);
    });
  };
}

void run(const Kind& kind, Table& table) {
  std::vector<std::string> names = {"plain, one thread",
                                    "forward and backward"};
  std::vector<Step> steps = {sequential(kind), forward_and_backward(kind)};
  for (const char* name : {"fill-drain", "1f1b", "zb-h1"}) {
    names.push_back(std::string("train_step, ") + name);
    steps.push_back(by(name, kind));
  }
  if (!FLAGS_python.empty()) {
    const auto layers = static_cast<int64_t>(
        make_peer_model(kind.model, kind.sizes, kSeed).model->size());
    for (const char* name : {"gpipe", "1f1b"}) {
      const auto peer = std::make_shared<Peer>(kind, layers, name);
      names.push_back(std::string("torch.distributed.pipelining, ") + name);
      steps.emplace_back([peer] { return peer->step(); });
    }
  }
  const auto seconds =
      interleaved_rounds<double>({FLAGS_rounds, /*warm_up=*/2}, steps);
  const double plain = median(seconds[0]);
  for (std::size_t k = 0; k < steps.size(); ++k) {
    const double least =
        *std::min_element(seconds[k].begin(), seconds[k].end());
    table.rows.push_back(
        {kind.model + ": " + names[k],
         {Cell(1e3 * median(seconds[k]), 1), Cell(1e3 * least, 1),
          Cell(median(seconds[k]) / plain, 3)},
         {},
         ""});
  }
}

std::vector<Table> measure() {
  if (FLAGS_microbatches <= 0 || FLAGS_rounds <= 0) {
    throw std::invalid_argument("--microbatches and --rounds must be above 0");
  }
  at::set_num_threads(1);
  Table table;
  table.title = "Steps of " + std::to_string(FLAGS_microbatches) +
                " micro-batches on two CPU partitions";
  table.name_column = "model and step";
  table.columns = {"median ms", "least ms", "by plain"};
  run({"mlp", {512, 32, 512, 0}}, table);
  run({"transformer", {16, 8, 256, 64}}, table);
  table.notes.push_back(
      "Every thread or process has one intra-op thread. Steps take turns, " +
      std::to_string(FLAGS_rounds) + " rounds after two to warm up.");
  return {table};
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_table_program(
      argc, argv,
      {"schedules_speed",
       "milliseconds of a step with several schedules on two CPU\n"
       "partitions, beside the plain model on one core.",
       {"", "--python=/folder/venv/bin/python --rounds=15"}},
      gpipe::benchmarks::measure);
}
