#include "training/checkpoint/join_shards.h"

#include <ATen/ops/cat.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "training/base/parameter_rows.h"
#include "training/checkpoint/damage.h"

namespace gpipe::internal {

void join_shards(OptimizerState& state) {
  using Parameter = OptimizerState::Parameter;
  std::map<std::string, std::map<int64_t, std::pair<int64_t, Parameter>>> all;
  std::map<std::string, Parameter> whole;
  for (auto& [name, parameter] : state.parameters) {
    if (auto shard = parse_shard_name(name)) {
      all[shard->parameter][shard->first] = {shard->end, std::move(parameter)};
    } else {
      whole.emplace(name, std::move(parameter));
    }
  }
  for (auto& [name, shards] : all) {
    Parameter joined = shards.begin()->second.second;
    std::map<std::string, std::vector<at::Tensor>> parts;
    int64_t row = 0;
    for (const auto& [first, rest] : shards) {
      const auto& [end, parameter] = rest;
      if (first != row || parameter.counts != joined.counts ||
          parameter.tensors.size() != joined.tensors.size()) {
        throw Damage("the rows of the optimizer's state of '" + name +
                     "' do not fit together at row " + std::to_string(row));
      }
      for (const auto& [what, tensor] : parameter.tensors) {
        parts[what].push_back(tensor);
      }
      row = end;
    }
    for (auto& [what, tensor] : joined.tensors) tensor = at::cat(parts[what]);
    if (!whole.emplace(name, std::move(joined)).second) {
      throw Damage("the optimizer's state of '" + name +
                   "' is there as a whole and in rows");
    }
  }
  state.parameters = std::move(whole);
}

}  // namespace gpipe::internal
