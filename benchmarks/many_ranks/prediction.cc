#include "benchmarks/many_ranks/prediction.h"

#include <algorithm>
#include <cstddef>

#include "gpipe/simulation.h"

namespace gpipe::benchmarks {
namespace {

Costs costs_of(const MessageCosts& measured, std::size_t ranks,
               double latency) {
  Costs costs;
  for (std::size_t stage = 0; stage < ranks; ++stage) {
    const int neighbours = (stage > 0 ? 1 : 0) + (stage + 1 < ranks ? 1 : 0);
    costs.forward.push_back(measured.action + measured.message * neighbours);
  }
  costs.backward = costs.forward;
  costs.latency = latency;
  return costs;
}

}  // namespace

MessageCosts message_costs(double alone, double with_messages, double step,
                           const Schedule& two) {
  MessageCosts costs{alone, std::max(0.0, with_messages - alone), 0};
  const auto makespan = [&](double latency) {
    return simulate(two, costs_of(costs, two.ranks.size(), latency)).makespan;
  };
  // The makespan grows with the latency. 50 halvings are below any clock.
  double low = 0, high = step;
  for (int k = 0; k < 50; ++k) {
    const double middle = (low + high) / 2;
    (makespan(middle) < step ? low : high) = middle;
  }
  costs.latency = low;
  return costs;
}

double predicted_step(const MessageCosts& measured, const Schedule& schedule,
                      double cores) {
  const std::size_t ranks = schedule.ranks.size();
  return std::max(
      simulate_on_cores(schedule, costs_of(measured, ranks, 0), cores).makespan,
      simulate(schedule, costs_of(measured, ranks, measured.latency)).makespan);
}

}  // namespace gpipe::benchmarks
