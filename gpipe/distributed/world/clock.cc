#include "gpipe/distributed/world/clock.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "gpipe/distributed/world/tags.h"

namespace gpipe::internal {
namespace {

constexpr int kRounds = 16;

double now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string action() { return "comparing clocks"; }

void send_time(Communicator& world, int to, int tag, double time) {
  const at::Tensor bytes = at::empty({1}, at::kDouble);
  *bytes.mutable_data_ptr<double>() = time;
  world.wait(world.send(bytes, to, tag, action), to, action);
}

double receive_time(Communicator& world, int from, int tag) {
  const at::Tensor bytes = at::empty({1}, at::kDouble);
  world.wait(world.receive(bytes, from, tag, action), from, action);
  return *bytes.const_data_ptr<double>();
}

}  // namespace

ClockOffset measure_clock(Communicator& world, int channel) {
  const int tag = Tags(channel).words;
  if (world.rank() == 0) {
    for (int rank = 1; rank < world.size(); ++rank) {
      for (int round = 0; round < kRounds; ++round) {
        receive_time(world, rank, tag);
        send_time(world, rank, tag, now());
      }
    }
    return {0, 0, now()};
  }
  double least = -std::numeric_limits<double>::infinity(), most = -least;
  for (int round = 0; round < kRounds; ++round) {
    const double asked = now();
    send_time(world, 0, tag, asked);
    const double theirs = receive_time(world, 0, tag);
    const double answered = now();
    least = std::max(least, theirs - answered);
    most = std::min(most, theirs - asked);
  }
  // A clock that drifts may leave nothing in the intersection.
  return {(least + most) / 2, std::max(0.0, (most - least) / 2), now()};
}

ClockOffset offset_at(const ClockOffset& before, const ClockOffset& after,
                      double time) {
  const double passed = after.at - before.at;
  const double part = passed > 0 ? (time - before.at) / passed : 0;
  return {before.seconds + part * (after.seconds - before.seconds),
          std::max(before.error, after.error), time};
}

}  // namespace gpipe::internal
