// Our side of tools/compare_peers: a training step for every line that comes,
// as worker.py, where the protocol is, makes them with the peers' engines.

#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

// After LibTorch's headers, which define the same macros unless glog has.
#include <gflags/gflags.h>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/parse.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/harness/throughput.h"
#include "benchmarks/peers/process_memory.h"
#include "benchmarks/peers/subject.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/processes.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"

DEFINE_string(model, "mlp", "resnet101, unet, amoebanetd, mlp, transformer.");
DEFINE_int64(batch, 512, "Rows of a mini-batch.");
DEFINE_int64(depth, 32, "Levels, cells, blocks or layers.");
DEFINE_int64(width, 512, "Channels or features.");
DEFINE_int64(side, 64, "Pixels of images' sides, tokens of sequences.");
DEFINE_string(engine, "gpipe",
              "gpipe: forward(), loss, backward(). Else train_step() by a "
              "schedule: 1f1b, zb-h1, ...");
DEFINE_bool(processes, false,
            "Every partition in a process of its own, over Gloo; --engine is a "
            "schedule.");
DEFINE_string(balance, "32,32", "Layers per partition.");
DEFINE_int64(microbatches, 4, "Micro-batches of a step.");
DEFINE_string(checkpoint, "never", "always, except_last, never.");
DEFINE_double(learning_rate, 0.01, "Of plain SGD.");
DEFINE_uint64(seed, 0, "Of weights and data.");

namespace gpipe::benchmarks {
namespace {

Subject subject_of_flags() {
  return make_subject(FLAGS_model,
                      {FLAGS_batch, FLAGS_depth, FLAGS_width, FLAGS_side},
                      FLAGS_seed);
}

int64_t elements_of(const std::vector<at::Tensor>& parameters) {
  int64_t count = 0;
  for (const at::Tensor& each : parameters) count += each.numel();
  return count;
}

torch::optim::SGD optimizer_of(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters,
                           torch::optim::SGDOptions(FLAGS_learning_rate));
}

struct Took {
  double wall_seconds = 0, cpu_seconds = 0, loss = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual int64_t parameters() const = 0;
  virtual int64_t layers() const = 0;
  virtual Took step() = 0;
  virtual double peak_mib() = 0;
};

// A pipeline of threads.
class Threads : public Engine {
 public:
  explicit Threads(const std::vector<int64_t>& balance)
      : subject_(subject_of_flags()),
        pipeline_(
            subject_.model,
            GPipeOptions(balance)
                .devices(std::vector<torch::Device>(balance.size(), at::kCPU))
                .chunks(FLAGS_microbatches)
                .checkpoint(parse_checkpoint(FLAGS_checkpoint))
                .threads_per_partition(1)),
        optimizer_(optimizer_of(pipeline_->parameters())) {
    if (FLAGS_engine == "gpipe") return;
    schedule_ = named_schedule(FLAGS_engine, static_cast<int>(balance.size()),
                               static_cast<int>(FLAGS_microbatches), 1);
  }

  int64_t parameters() const override {
    return elements_of(pipeline_->parameters());
  }
  int64_t layers() const override { return pipeline_->size(); }
  double peak_mib() override { return memory_.peak_mib(); }

  Took step() override {
    const Stopwatch watch({at::Device(at::kCPU)});
    const double loss = schedule_ ? by_schedule() : forward_and_backward();
    optimizer_.step();
    optimizer_.zero_grad();
    const Duration took = watch.elapsed();
    return {took.wall_seconds, took.cpu_seconds, loss};
  }

 private:
  double forward_and_backward() {
    const at::Tensor loss =
        subject_.loss(pipeline_->forward(subject_.input), subject_.target);
    loss.backward();
    return loss.item<double>();
  }
  double by_schedule() {
    return pipeline_
        ->train_step(subject_.input, subject_.target, subject_.loss, *schedule_)
        .loss.item<double>();
  }

  const Subject subject_;
  GPipe pipeline_;
  torch::optim::SGD optimizer_;
  std::optional<Schedule> schedule_;
  const ProcessMemory memory_;
};

// This process's part of a pipeline of processes. All make the same calls.
class Rank {
 public:
  explicit Rank(std::shared_ptr<World> world)
      : world_(std::move(world)),
        subject_(subject_of_flags()),
        pipeline_(
            std::exchange(subject_.model, nullptr),
            DistributedOptions(parse_positive_list("balance", FLAGS_balance))
                .checkpoint(parse_checkpoint(FLAGS_checkpoint))
                .device(torch::Device(at::kCPU))
                .threads(1),
            world_),
        schedule_(named_schedule(FLAGS_engine, world_->size(),
                                 static_cast<int>(FLAGS_microbatches), 1)),
        optimizer_(optimizer_of(pipeline_->parameters())) {}

  enum class Word : int64_t { kStop, kStep, kPeak };
  // What rank 0 says.
  Word hear(Word word = Word::kStop) {
    std::vector<at::Tensor> words{at::tensor(static_cast<int64_t>(word))};
    world_->group().broadcast(words)->wait();
    return static_cast<Word>(words[0].item<int64_t>());
  }

  Took step() {
    const Stopwatch watch({at::Device(at::kCPU)});
    const double loss = pipeline_
                            ->train_step(subject_.input, subject_.target,
                                         subject_.loss, schedule_)
                            .loss.item<double>();
    optimizer_.step();
    optimizer_.zero_grad();
    sum(0);  // until all have
    const Duration took = watch.elapsed();
    return {took.wall_seconds, sum(took.cpu_seconds), loss};
  }

  // Of all ranks.
  double parameters() { return sum(elements_of(pipeline_->parameters())); }
  double peak_mib() { return sum(memory_.peak_mib()); }
  int64_t layers() const { return pipeline_->size(); }

 private:
  double sum(double value) {
    std::vector<at::Tensor> values{at::tensor(value, at::kDouble)};
    world_->group().allreduce(values)->wait();
    return values[0].item<double>();
  }

  const std::shared_ptr<World> world_;
  Subject subject_;
  DistributedPipeline pipeline_;
  const Schedule schedule_;
  torch::optim::SGD optimizer_;
  const ProcessMemory memory_;
};

WorldOptions world_options() {
  WorldOptions options = WorldOptions::from_environment();
  // Other engines make their steps in between.
  options.timeout = std::chrono::hours(1);
  options.heartbeat_timeout = std::chrono::minutes(10);
  return options;
}

// The life of a process that is not rank 0.
void follow() {
  Rank rank(World::connect(world_options()));
  rank.parameters();
  while (true) {
    switch (rank.hear()) {
      case Rank::Word::kStop:
        return;
      case Rank::Word::kStep:
        rank.step();
        break;
      case Rank::Word::kPeak:
        rank.peak_mib();
        break;
    }
  }
}

// All ranks, for the process that is rank 0: the others are this program again.
class Ranks : public Engine {
 public:
  explicit Ranks(int size) : others_(start(size)) {
    rank_.emplace(World::connect(world_options()));
    parameters_ = static_cast<int64_t>(rank_->parameters());
  }
  ~Ranks() override {
    rank_->hear(Rank::Word::kStop);
    rank_.reset();
  }

  int64_t parameters() const override { return parameters_; }
  int64_t layers() const override { return rank_->layers(); }
  Took step() override {
    rank_->hear(Rank::Word::kStep);
    return rank_->step();
  }
  double peak_mib() override {
    rank_->hear(Rank::Word::kPeak);
    return rank_->peak_mib();
  }

 private:
  static std::unique_ptr<Processes> start(int size) {
    const auto set = [](const char* name, const std::string& value) {
      ::setenv(name, value.c_str(), /*overwrite=*/1);
    };
    set("WORLD_SIZE", std::to_string(size));
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", std::to_string(free_port()));
    set("RANK", "0");
    ::unsetenv("LOCAL_RANK");
    ::unsetenv("LOCAL_WORLD_SIZE");
    const std::vector<std::string> words = gflags::GetArgvs();
    std::vector<Command> commands;
    for (int rank = 1; rank < size; ++rank) {
      commands.push_back({"/proc/self/exe",
                          {words.begin() + 1, words.end()},
                          {{"RANK", std::to_string(rank)}}});
    }
    return std::make_unique<Processes>(commands,
                                       [](int, Stream, std::string_view line) {
                                         std::cerr << line << std::endl;
                                       });
  }

  const std::unique_ptr<Processes> others_;
  std::optional<Rank> rank_;
  int64_t parameters_ = 0;
};

std::unique_ptr<Engine> make_engine() {
  const auto balance = parse_positive_list("balance", FLAGS_balance);
  if (!FLAGS_processes) return std::make_unique<Threads>(balance);
  return std::make_unique<Ranks>(static_cast<int>(balance.size()));
}

void serve() {
  at::set_num_threads(1);
  const char* const rank = std::getenv("RANK");
  if (FLAGS_processes && rank && std::string(rank) != "0") return follow();
  const std::unique_ptr<Engine> engine = make_engine();
  std::cout << "READY " << engine->parameters() << " " << engine->layers()
            << " " << TORCH_VERSION << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "step") {
      const Took took = engine->step();
      std::cout << took.wall_seconds << " " << took.cpu_seconds << " "
                << took.loss << std::endl;
    } else if (line == "peak") {
      std::cout << engine->peak_mib() << std::endl;
    } else {
      throw std::runtime_error("neither 'step' nor 'peak' on the input: " +
                               line);
    }
  }
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  const gpipe::benchmarks::Program program{
      "worker",
      "makes a training step for each line 'step' on its input and\n"
      "says how long it took; for tools/compare_peers.",
      {"--model=mlp --engine=1f1b", "--model=mlp --engine=1f1b --processes"}};
  return gpipe::benchmarks::run_program(argc, argv, program, [] {
    gpipe::benchmarks::serve();
    return gpipe::benchmarks::kOk;
  });
}
