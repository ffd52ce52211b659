#include "gpipe/simulation/costs.h"

#include <algorithm>
#include <cmath>

#include "gpipe/base/text.h"

namespace gpipe {
namespace {

constexpr internal::ActionCost kByteLists[] = {
    {"boundary_bytes", &Costs::boundary_bytes},
    {"resident_bytes", &Costs::resident_bytes},
    {"activation_bytes", &Costs::activation_bytes},
    {"input_bytes", &Costs::input_bytes},
    {"weight_activation_bytes", &Costs::weight_activation_bytes},
    {"offload_bytes", &Costs::offload_bytes}};

bool is_cost(double number) { return std::isfinite(number) && number >= 0; }

void check_list(const char* name, const std::vector<double>& list) {
  for (std::size_t stage = 0; stage < list.size(); ++stage) {
    if (is_cost(list[stage])) continue;
    internal::refuse("the ", name, " cost of stage ", stage, " is ",
                     list[stage], ": costs must be finite and not negative");
  }
}

void check_number(const char* name, double number) {
  if (is_cost(number)) return;
  internal::refuse("the ", name, " is ", number,
                   ": it must be finite and not negative");
}

}  // namespace

bool internal::has_memory(const Costs& costs) {
  return !(costs.resident_bytes.empty() && costs.activation_bytes.empty() &&
           costs.input_bytes.empty() && costs.weight_activation_bytes.empty());
}

void check_costs(const Costs& costs) {
  for (const auto& [name, list] : internal::kActionCosts) {
    check_list(name, costs.*list);
  }
  for (const auto& [name, list] : kByteLists) check_list(name, costs.*list);
  check_number("latency", costs.latency);
  check_number("bandwidth", costs.bandwidth);
  check_number("host_bandwidth", costs.host_bandwidth);
  check_number("overlap", costs.overlap);
  if (costs.overlap > 1) {
    internal::refuse("the overlap is ", costs.overlap,
                     ": it is a part of the shorter action, 0 to 1");
  }
  std::vector<double> kept = costs.activation_bytes;
  if (kept.empty() && internal::has_memory(costs)) {
    kept.resize(costs.offload_bytes.size());
  }
  const std::size_t stages = std::min(costs.offload_bytes.size(), kept.size());
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const double moved = costs.offload_bytes[stage];
    if (moved <= kept[stage]) continue;
    internal::refuse("the offload_bytes cost of stage ", stage, " is ", moved,
                     ", but its activation_bytes are ", kept[stage],
                     ": only what a forward keeps can go to the host");
  }
}

}  // namespace gpipe
