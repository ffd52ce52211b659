// Measures the backends between two ranks in one run. The steps of all backends
// alternate, in the same processes. tools/compare_backends starts the ranks, on
// one machine or on two hosts of network namespaces.
//
//   RANK=0 WORLD_SIZE=2 backends --model=mlp --plan=FILE
//   RANK=0 WORLD_SIZE=2 backends --bytes=4096,1048576
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gflags/gflags.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "benchmarks/harness/program.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/throughput.h"
#include "benchmarks/peers/peer_model.h"
#include "benchmarks/peers/worker_flags.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/world.h"
#include "gpipe/schedule.h"
#include "gpipe/text/format.h"
#include "gpipe/text/lists.h"

DEFINE_string(
    backends, "gpipe,sockets,gloo",
    "Backends: gpipe, sockets (gpipe without shared memory), or gloo.");
DEFINE_int64(rounds, 30, "Measured rounds, in each of which all take turns.");
DEFINE_int64(warm_up, 5, "Rounds that do not count.");
DEFINE_string(bytes, "",
              "Instead of training, send messages of these sizes, a list.");

namespace gpipe::benchmarks {
namespace {

// The messages that are under way in a measurement of the bandwidth.
constexpr std::size_t kWindow = 8;
constexpr int64_t kBytesPerRound = 32 << 20;
constexpr int kTag = 1 << 20;

struct Column {
  std::string name;
  std::shared_ptr<World> world;
  std::vector<double> seconds, cpu_seconds;
};

std::vector<Column> connect() {
  std::vector<Column> columns;
  for (const std::string& name : split_list(FLAGS_backends)) {
    WorldOptions options = WorldOptions::from_environment();
    options.timeout = std::chrono::minutes(5);
    options.port += static_cast<int>(columns.size());
    options.backend = name == "sockets" ? "gpipe" : name;
    options.shares_memory = name == "gpipe";
    columns.push_back({name, World::connect(options), {}, {}});
  }
  return columns;
}

// Returns the values of all ranks.
std::vector<double> all_of(World& world, double value) {
  std::vector<double> values;
  for (const auto& each : all_gather(world, format("%.9g", value))) {
    values.push_back(std::stod(each));
  }
  return values;
}

// Runs `work(column)` for all columns in turn, in each round. The order
// rotates. A time begins and ends when all ranks are there.
void measure(std::vector<Column>& columns,
             const std::function<void(std::size_t)>& work) {
  for (int64_t round = 0; round < FLAGS_warm_up + FLAGS_rounds; ++round) {
    for (std::size_t k = 0; k < columns.size(); ++k) {
      const std::size_t at =
          (k + static_cast<std::size_t>(round)) % columns.size();
      Column& column = columns[at];
      all_of(*column.world, 0);
      const Duration took = time_of([&] { work(at); });
      const auto walls = all_of(*column.world, took.wall_seconds);
      const auto cpus = all_of(*column.world, took.cpu_seconds);
      if (round < FLAGS_warm_up) continue;
      column.seconds.push_back(*std::max_element(walls.begin(), walls.end()));
      double sum = 0;
      for (const double each : cpus) sum += each;
      column.cpu_seconds.push_back(sum);
    }
  }
}

// Prints a row for each column and clears the values. `bytes`: of a round, or
// 0.
void print(std::vector<Column>& columns, const std::string& label,
           double bytes) {
  for (Column& column : columns) {
    auto& seconds = column.seconds;
    std::sort(seconds.begin(), seconds.end());
    const double middle = median(seconds);
    if (column.world->rank() == 0) {
      std::cout << label << "\t" << column.name << "\t"
                << format("%.3f\t%.3f\t%.3f\t%.3f", 1e3 * middle,
                          1e3 * seconds.front(), 1e3 * seconds.back(),
                          1e3 * median(column.cpu_seconds));
      if (bytes > 0) std::cout << format("\t%.3f", bytes / middle / 1e9);
      std::cout << std::endl;
    }
    seconds.clear();
    column.cpu_seconds.clear();
  }
}

// A model in training over one world.
class Trained {
 public:
  explicit Trained(const std::shared_ptr<World>& world)
      : plan_(plan_of_flags()),
        model_(model_of_flags()),
        pipeline_(std::exchange(model_.model, nullptr),
                  DistributedOptions(plan_.balance)
                      .checkpoint(plan_.checkpoint)
                      .stages_per_rank(plan_.stages_per_rank)
                      .placement(plan_.placement)
                      .threads_per_partition(1),
                  world),
        schedule_(plan_.schedule()),
        optimizer_(pipeline_->parameters(),
                   torch::optim::SGDOptions(FLAGS_learning_rate)) {}

  void step() {
    pipeline_->train_step(model_.input, model_.target, model_.loss, schedule_);
    optimizer_.step();
    optimizer_.zero_grad();
  }

 private:
  const balancing::Plan plan_;
  PeerModel model_;
  DistributedPipeline pipeline_;
  const Schedule schedule_;
  torch::optim::SGD optimizer_;
};

void measure_training(std::vector<Column>& columns) {
  std::vector<std::unique_ptr<Trained>> trained;
  for (const Column& column : columns) {
    trained.push_back(std::make_unique<Trained>(column.world));
  }
  measure(columns, [&](std::size_t k) { trained[k]->step(); });
  print(columns, "step", 0);
}

// Sends `count` messages of `bytes` bytes from rank 0 to rank 1.
void send_many(World& world, int64_t bytes, int64_t count) {
  const World::Action action = [] { return "measuring"; };
  const int peer = 1 - world.rank();
  using Flying = std::pair<at::Tensor, c10::intrusive_ptr<c10d::Work>>;
  std::deque<Flying> flying;
  static std::vector<at::Tensor> buffers;
  buffers.resize(kWindow);
  for (int64_t k = 0; k < count; ++k) {
    at::Tensor& buffer = buffers[static_cast<std::size_t>(k) % kWindow];
    if (!buffer.defined() || buffer.numel() != bytes) {
      buffer = at::zeros({bytes}, at::kByte);
    }
    if (flying.size() == kWindow) {
      world.wait(*flying.front().second, peer, action);
      flying.pop_front();
    }
    flying.emplace_back(
        buffer, world.rank() == 0 ? world.send(buffer, peer, kTag, action)
                                  : world.receive(buffer, peer, kTag, action));
  }
  for (Flying& each : flying) world.wait(*each.second, peer, action);
}

// Sends a message there and back.
void ping_pong(World& world, int64_t bytes, int64_t count) {
  const World::Action action = [] { return "measuring"; };
  const int peer = 1 - world.rank();
  const at::Tensor buffer = at::zeros({bytes}, at::kByte);
  for (int64_t k = 0; k < 2 * count; ++k) {
    const bool sends = (k % 2 == 0) == (world.rank() == 0);
    const auto work = sends ? world.send(buffer, peer, kTag, action)
                            : world.receive(buffer, peer, kTag, action);
    world.wait(*work, peer, action);
  }
}

void measure_bytes(std::vector<Column>& columns) {
  constexpr int64_t kPings = 200;
  measure(columns,
          [&](std::size_t k) { ping_pong(*columns[k].world, 64, kPings); });
  print(columns,
        format("%d there-and-backs of 64 bytes", static_cast<int>(kPings)), 0);
  for (const int64_t bytes : parse_positive_list("bytes", FLAGS_bytes)) {
    const int64_t count = std::clamp<int64_t>(kBytesPerRound / bytes, 4, 1000);
    measure(columns,
            [&](std::size_t k) { send_many(*columns[k].world, bytes, count); });
    print(columns, std::to_string(bytes) + " bytes",
          static_cast<double>(bytes * count));
  }
}

void run() {
  at::set_num_threads(1);
  std::vector<Column> columns = connect();
  if (FLAGS_bytes.empty()) {
    measure_training(columns);
  } else {
    measure_bytes(columns);
  }
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  const gpipe::benchmarks::Program program{
      "backends",
      "measures the backends between two ranks; for tools/compare_backends.",
      {"--model=mlp --plan=FILE", "--bytes=4096,1048576"}};
  return gpipe::benchmarks::run_program(argc, argv, program, [] {
    gpipe::benchmarks::run();
    return gpipe::benchmarks::kOk;
  });
}
