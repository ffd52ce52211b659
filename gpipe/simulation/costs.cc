#include "gpipe/simulation/costs.h"

#include <algorithm>
#include <cmath>

#include "gpipe/base/text.h"

namespace gpipe {
namespace {

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

void check_costs(const Costs& costs) {
  for (const auto& [name, list] : internal::kActionCosts) {
    check_list(name, costs.*list);
  }
  check_list("boundary_bytes", costs.boundary_bytes);
  check_list("resident_bytes", costs.resident_bytes);
  check_list("activation_bytes", costs.activation_bytes);
  check_list("input_bytes", costs.input_bytes);
  check_list("weight_activation_bytes", costs.weight_activation_bytes);
  check_list("offload_bytes", costs.offload_bytes);
  check_number("latency", costs.latency);
  check_number("bandwidth", costs.bandwidth);
  check_number("host_bandwidth", costs.host_bandwidth);
  check_number("overlap", costs.overlap);
  if (costs.overlap > 1) {
    internal::refuse("the overlap is ", costs.overlap,
                     ": it is a part of the shorter action, 0 to 1");
  }
  const std::size_t stages =
      std::min(costs.offload_bytes.size(), costs.activation_bytes.size());
  for (std::size_t stage = 0; stage < stages; ++stage) {
    if (costs.offload_bytes[stage] <= costs.activation_bytes[stage]) continue;
    internal::refuse("the offload_bytes cost of stage ", stage, " is ",
                     costs.offload_bytes[stage],
                     ", but its activation_bytes are ",
                     costs.activation_bytes[stage],
                     ": only what a forward keeps can go to the host");
  }
}

internal::StageBytes::StageBytes(const Costs& costs, std::size_t stages) {
  const auto list = [&](const char* name, const std::vector<double>& bytes,
                        const std::vector<double>& otherwise) {
    if (bytes.empty()) return otherwise;
    if (bytes.size() < stages) {
      refuse("there is no ", name, " cost of stage ", bytes.size(),
             " (stages: ", stages,
             "): give one for each stage, or none at all");
    }
    return bytes;
  };
  const std::vector<double> none(stages);
  resident = list("resident_bytes", costs.resident_bytes, none);
  activation = list("activation_bytes", costs.activation_bytes, none);
  input = list("input_bytes", costs.input_bytes, none);
  weight = list("weight_activation_bytes", costs.weight_activation_bytes,
                activation);
  offload = list("offload_bytes", costs.offload_bytes, activation);
}

}  // namespace gpipe
