#include "benchmarks/many_ranks/rank.h"

#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "benchmarks/harness/statistics.h"
#include "gpipe/distributed/error.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"

namespace gpipe::benchmarks {
namespace {

constexpr int64_t kWidth = 8;

int64_t count_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// Returns the number of sockets of this process that have a peer.
int64_t count_connections() {
  int64_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename().string());
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    const bool has_peer =
        ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address),
                      &length) == 0;
    if (has_peer && address.ss_family != AF_UNIX) ++count;
  }
  return count;
}

torch::nn::Sequential make_layers(int64_t, int64_t count) {
  torch::nn::Sequential layers;
  for (int64_t k = 0; k < count; ++k) {
    layers->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  return layers;
}

}  // namespace

double seconds_now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int run_rank(const RankOptions& options) {
  const double loaded = seconds_now();
  WorldOptions world_options = WorldOptions::from_environment();
  world_options.timeout = std::chrono::minutes(5);
  world_options.heartbeat_timeout = std::chrono::minutes(1);
  const auto world = World::connect(world_options);
  const auto ranks = static_cast<int>(world->size() / options.replicas);
  DistributedPipeline pipeline(
      LayerBuilder(make_layers),
      DistributedOptions(std::vector<int64_t>(ranks, 1))
          .data_parallel(options.replicas)
          .threads(1),
      world);
  const auto m = static_cast<int>(options.microbatches);
  const Schedule schedule = one_forward_one_backward(ranks, m);
  const at::Tensor rows = torch::ones({options.microbatches, kWidth});
  const auto step = [&] {
    pipeline->train_step(
        rows, rows,
        [](const at::Tensor& output, const at::Tensor& target) {
          return torch::mse_loss(output, target);
        },
        schedule);
  };
  step();
  std::cout << "loaded " << std::to_string(loaded) << " ready "
            << std::to_string(seconds_now()) << " threads " << count_threads()
            << (world->rank() == 0 ? " store_connections " : " connections ")
            << count_connections() << std::endl;
  std::vector<double> seconds;
  for (int64_t k = 0; k < options.steps; ++k) {
    const double start = seconds_now();
    step();
    seconds.push_back(seconds_now() - start);
  }
  std::cout << "median " << std::to_string(median(seconds)) << std::endl;
  try {
    while (true) step();
  } catch (const PeerError& error) {
    std::cout << "failed " << std::to_string(seconds_now()) << " names "
              << error.failure().rank << std::endl;
  }
  return 0;
}

}  // namespace gpipe::benchmarks
