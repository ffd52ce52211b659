#include "benchmarks/relayed_profile.h"

#include <cstddef>
#include <map>
#include <string>

#include "benchmarks/harness/relay.h"

namespace gpipe::benchmarks {

RelayedProfile relayed_profile(const balancing::Profile& profile,
                               const torch::nn::Sequential& model,
                               const at::Tensor& input,
                               const std::vector<int64_t>& balance) {
  std::map<std::string, balancing::LayerTime> times;
  for (std::size_t k = 0; k < profile.names.size(); ++k) {
    times[profile.names[k]] = profile.times.at(k);
  }
  Relayed relayed = relay_skips(model, balance);
  balancing::Profile result;
  result.device = profile.device;
  result.rows = profile.rows;
  for (const auto& child : relayed.model->named_children()) {
    result.names.push_back(child.key());
    result.times.push_back(times[child.key()]);
  }
  result.memory = balancing::profile_memory(relayed.model, input);
  return {result, relayed.balance};
}

}  // namespace gpipe::benchmarks
