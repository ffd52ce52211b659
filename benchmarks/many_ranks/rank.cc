#include "benchmarks/many_ranks/rank.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/table.h"
#include "benchmarks/harness/throughput.h"
#include "gpipe/distributed/error.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/world.h"
#include "gpipe/distributed/world/clock.h"
#include "gpipe/processes/connections.h"

namespace gpipe::benchmarks {
namespace {

int64_t count_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

std::shared_ptr<World> connect() {
  WorldOptions options = WorldOptions::from_environment();
  options.timeout = std::chrono::minutes(5);
  options.heartbeat_timeout = std::chrono::minutes(1);
  return World::connect(options);
}

}  // namespace

double seconds_now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int run_rank(const Training& training) {
  const double loaded = seconds_now();
  const auto world = connect();
  const int64_t ranks = world->size() / training.replicas;
  DistributedPipeline pipeline(
      LayerBuilder(make_layers),
      DistributedOptions(std::vector<int64_t>(ranks, 1))
          .data_parallel(training.replicas)
          .threads(1),
      world);
  const Schedule schedule = schedule_of(training, ranks);
  const int64_t replica = pipeline->layout().replica;
  const at::Tensor inputs = inputs_of(training, replica);
  const at::Tensor targets = targets_of(training, replica);
  const auto step = [&] {
    pipeline->train_step(inputs, targets, loss_of, schedule);
  };
  step();
  update(pipeline->parameters());
  std::cout << "loaded " << std::to_string(loaded) << " ready "
            << std::to_string(seconds_now()) << " threads " << count_threads()
            << (world->rank() == 0 ? " store_connections " : " connections ")
            << count_connections() << std::endl;
  std::vector<double> seconds;
  double cpu = 0;
  for (int64_t k = 0; k < training.steps; ++k) {
    const Duration took = time_of(step);
    seconds.push_back(took.wall_seconds);
    cpu += took.cpu_seconds;
    update(pipeline->parameters());
  }
  std::cout << "layer " << pipeline->layout().rank << " bits "
            << bits_of(pipeline->parameters()) << " cpu "
            << std::to_string(cpu / static_cast<double>(training.steps))
            << " median " << std::to_string(median(seconds)) << std::endl;
  try {
    while (true) step();
  } catch (const PeerError& error) {
    std::cout << "failed " << std::to_string(seconds_now()) << " names "
              << error.failure().rank << std::endl;
  }
  return 0;
}

int run_clock_rank(int64_t rounds) {
  const auto world = connect();
  const int channel = world->next_channel();
  for (int64_t k = 0; k < rounds; ++k) {
    const internal::ClockOffset clock =
        internal::measure_clock(*world, channel);
    if (world->rank() == 0) continue;
    std::cout << std::scientific << "offset " << clock.seconds << " bound "
              << clock.error << std::endl;
  }
  return 0;
}

}  // namespace gpipe::benchmarks
