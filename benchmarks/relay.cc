#include "benchmarks/relay.h"

#include <c10/util/Exception.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstddef>
#include <map>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>

#include "gpipe/skip.h"

namespace gpipe::benchmarks {
namespace {

// A layer that pops a skip tensor and stashes it under another key. A relay
// needs two such layers, since a layer cannot pop and stash the same name.
class HandOverImpl : public torch::nn::Cloneable<HandOverImpl>,
                     public Skippable {
 public:
  HandOverImpl(SkipKey from, SkipKey to)
      : Skippable({{to.name}, {from.name}}),
        from_(std::move(from)),
        to_(std::move(to)) {
    isolate(from_.ns, {from_.name});
    isolate(to_.ns, {to_.name});
  }

  torch::Tensor forward(torch::Tensor x) {
    stash(to_.name, pop(from_.name));
    return x;
  }

  void reset() override {}
  void pretty_print(std::ostream& stream) const override {
    stream << "HandOver(" << from_.name << ")";
  }

 private:
  SkipKey from_, to_;
};
TORCH_MODULE(HandOver);

// Makes `layer`, and the modules inside of it, pop `key` from the namespace
// `ns`.
void pop_from(torch::nn::Module& layer, const SkipKey& key,
              const Namespace& ns) {
  for (const auto& module : layer.modules()) {
    auto* const skippable = dynamic_cast<Skippable*>(module.get());
    if (!skippable) continue;
    for (const SkipKey& each : skippable->poppable()) {
      if (each == key) skippable->isolate(ns, {key.name});
    }
  }
}

}  // namespace

Relayed relay_skips(const torch::nn::Sequential& model,
                    const std::vector<int64_t>& balance) {
  verify_skippables(model);
  const auto layers = static_cast<int64_t>(model->size());
  const auto sum = std::accumulate(balance.begin(), balance.end(), int64_t{0});
  TORCH_CHECK_VALUE(sum == layers, "relay_skips: the model has ", layers,
                    " layers, but the sum of the balance is ", sum);
  const std::vector<internal::LayerSkips> declared =
      internal::declared_skips(model);
  const auto children = model->named_children();

  // The index of the layer that pops each skip tensor.
  std::map<SkipKey, int64_t> popped_by;
  for (int64_t k = 0; k < layers; ++k) {
    for (const SkipKey& key : declared[k].pop) popped_by[key] = k;
  }
  // The current key of each skip tensor that is stashed and not yet popped, by
  // its original key.
  std::map<SkipKey, SkipKey> under_way;
  Relayed relayed;
  int64_t first = 0;
  for (std::size_t j = 0; j < balance.size(); ++j) {
    const int64_t last = first + balance[j];
    relayed.balance.push_back(balance[j]);
    for (auto& [key, current] : under_way) {
      if (popped_by.at(key) < last) continue;
      const SkipKey inside{Namespace(), key.name + "'"};
      const SkipKey onward{Namespace(), key.name};
      const std::string name =
          declared[popped_by.at(key)].layer + "_relay" + std::to_string(j);
      relayed.model->push_back(name + "_in", HandOver(current, inside));
      relayed.model->push_back(name + "_out", HandOver(inside, onward));
      relayed.balance.back() += 2;
      current = onward;
    }
    for (int64_t k = first; k < last; ++k) {
      for (const SkipKey& key : declared[k].pop) {
        const auto found = under_way.find(key);
        if (found == under_way.end()) continue;
        if (!(found->second == key)) {
          pop_from(*children[k].value(), key, found->second.ns);
        }
        under_way.erase(found);
      }
      for (const SkipKey& key : declared[k].stash) under_way[key] = key;
      relayed.model->push_back(children[k].key(), *(model->begin() + k));
    }
    first = last;
  }
  return relayed;
}

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
