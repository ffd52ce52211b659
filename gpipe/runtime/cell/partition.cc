#include "gpipe/runtime/cell/partition.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "gpipe/runtime/device/stream.h"
#include "gpipe/skip/skippable.h"

namespace gpipe::internal {
namespace {

template <typename Rnn>
bool is_time_first(const torch::nn::Module& module) {
  const auto* const rnn = dynamic_cast<const Rnn*>(&module);
  return rnn && !rnn->options_base.batch_first();
}

bool takes_time_first(const torch::nn::Module& module) {
  using namespace torch::nn;  // NOLINT: five of its layers
  return is_time_first<RNNImpl>(module) || is_time_first<GRUImpl>(module) ||
         is_time_first<LSTMImpl>(module) ||
         dynamic_cast<const TransformerEncoderLayerImpl*>(&module) ||
         dynamic_cast<const TransformerEncoderImpl*>(&module);
}

void find_shared_buffers(std::vector<Partition>& partitions) {
  std::map<const at::TensorImpl*, Partition*> first;
  for (Partition& partition : partitions) {
    for (const Layer& layer : partition.layers) {
      for (const at::Tensor& each : layer.module.ptr()->buffers()) {
        if (!each.defined()) continue;
        Partition* const other =
            first.emplace(each.unsafeGetTensorImpl(), &partition).first->second;
        if (other == &partition) continue;
        for (Partition* const user : {other, &partition}) {
          if (!contains(user->shared_buffers, each)) {
            user->shared_buffers.push_back(each);
          }
        }
      }
    }
  }
}

}  // namespace

std::vector<Partition> partition(std::vector<Layer> layers,
                                 const std::vector<int64_t>& balance,
                                 const std::vector<c10::Device>& devices) {
  std::vector<LayerSkips> skips;
  for (const Layer& layer : layers) skips.push_back(layer.skips);

  std::vector<Partition> partitions(balance.size());
  std::size_t next = 0;
  for (std::size_t j = 0; j < balance.size(); ++j) {
    partitions[j].index = static_cast<int64_t>(j);
    partitions[j].device = devices[j];
    for (int64_t k = 0; k < balance[j]; ++k) {
      partitions[j].layers.push_back(std::move(layers[next++]));
    }
    if (partitions[j].layers.front().module.is_empty()) {
      partitions[j].remote = true;
      partitions[j].layers.clear();
    }
    for (const Layer& layer : partitions[j].layers) {
      partitions[j].modules.add(layer.name + ".", layer.module.ptr());
    }
  }
  for (SkipRoute& route : skip_routes(skips, balance)) {
    partitions[route.from].exports.push_back(route);
    partitions[route.to].imports.push_back(std::move(route));
  }
  find_shared_buffers(partitions);
  return partitions;
}

namespace {

constexpr char kRemedy[] =
    "; balancing/balancing.h computes a balance from a profile of the layers "
    "(gpipe::balancing::balance_by_time)";

// Returns the sum; nullopt if no int64_t holds it.
std::optional<int64_t> sum_of(const std::vector<int64_t>& numbers) {
  int64_t sum = 0;
  for (const int64_t each : numbers) {
    if (__builtin_add_overflow(sum, each, &sum)) return std::nullopt;
  }
  return sum;
}

}  // namespace

void check_balance(const std::vector<int64_t>& balance, std::size_t layers) {
  const std::optional<int64_t> sum = sum_of(balance);
  TORCH_CHECK_VALUE(
      sum == static_cast<int64_t>(layers),
      "module and sum of balance have different length "
      "(module: ",
      layers, ", sum of balance: ", sum ? std::to_string(*sum) : "too large",
      ", balance: ", c10::IntArrayRef(balance), ")", kRemedy);
  check_positive(balance);
}

void check_positive(const std::vector<int64_t>& balance) {
  for (const int64_t each : balance) {
    TORCH_CHECK_VALUE(each > 0,
                      "all balance numbers must be positive integer (balance: ",
                      c10::IntArrayRef(balance), ")", kRemedy);
  }
  TORCH_CHECK_VALUE(sum_of(balance),
                    "the sum of balance is too large (balance: ",
                    c10::IntArrayRef(balance), ")", kRemedy);
}

void check_stages_per_rank(std::size_t partitions, int64_t stages_per_rank) {
  TORCH_CHECK_VALUE(stages_per_rank > 0 &&
                        static_cast<int64_t>(partitions) % stages_per_rank == 0,
                    "the number of partitions must be a multiple of "
                    "stages_per_rank, which must be positive (partitions: ",
                    partitions, ", stages_per_rank: ", stages_per_rank, ")");
}

void check_chunks(int64_t chunks) {
  TORCH_CHECK_VALUE(
      chunks > 0, "number of chunks must be positive integer (chunks: ", chunks,
      "); begin with 4 per partition, or let balancing::plan() choose");
}

int worker_threads(int64_t threads_per_partition, int otherwise) {
  constexpr int kMost = std::numeric_limits<int>::max();
  TORCH_CHECK_VALUE(
      threads_per_partition >= 0 && threads_per_partition <= kMost,
      "threads_per_partition must be between 0, for the default, and ", kMost,
      " (threads_per_partition: ", threads_per_partition, ")");
  return threads_per_partition > 0 ? static_cast<int>(threads_per_partition)
                                   : otherwise;
}

void check_layers_differ(const torch::nn::Sequential& module) {
  std::map<const torch::nn::Module*, std::string> names;
  for (const auto& child : module->named_children()) {
    const auto [first, is_new] =
        names.emplace(child.value().get(), child.key());
    TORCH_CHECK_VALUE(is_new,
                      "module with duplicate layers is not supported: "
                      "layers '",
                      first->second, "' and '", child.key(),
                      "' are the same object; make a second one");
  }
}

std::vector<Layer> layers_of(torch::nn::Sequential module) {
  std::vector<Layer> layers;
  const std::vector<LayerSkips> skips = declared_skips(module);
  const auto children = module->named_children();
  for (torch::nn::AnyModule& layer : *module) {
    const std::size_t k = layers.size();
    layers.push_back(
        {layer, children[k].key(), static_cast<int64_t>(k), skips[k]});
  }
  return layers;
}

std::string time_first_layer(const std::vector<Partition>& partitions) {
  for (const Partition& partition : partitions) {
    if (partition.remote) break;
    for (const Layer& layer : partition.layers) {
      const torch::nn::Module& module = *layer.module.ptr();
      // That of first_output() has the name of its layer.
      const std::string& type = module.name();
      if (!type.starts_with("torch::nn::") ||
          type == "torch::nn::FunctionalImpl") {
        return "";
      }
      if (takes_time_first(module)) return layer.name;
    }
  }
  return "";
}

void check_sharing(const std::vector<Partition>& partitions,
                   const std::vector<std::string>& places,
                   const std::string& kind) {
  std::map<const at::TensorImpl*, std::pair<const Partition*, std::string>>
      owners;
  for (const Partition& partition : partitions) {
    std::set<const at::TensorImpl*> norms;
    for (const at::Tensor& each : partition.modules.norm_buffers()) {
      norms.insert(each.unsafeGetTensorImpl());
    }
    const auto check = [&](const Layer& layer, const std::string& what,
                           const auto& named) {
      if (!named.value().defined()) return;
      const at::TensorImpl* const tensor = named.value().unsafeGetTensorImpl();
      const std::string name = layer.name + "." + named.key();
      const auto [owner, is_new] =
          owners.emplace(tensor, std::make_pair(&partition, name));
      const auto& [first, first_name] = owner->second;
      TORCH_CHECK_VALUE(
          is_new || places[first->index] == places[partition.index],
          "module with a ", what, " shared by partitions on different ", kind,
          "s is not supported: '", first_name, "' (partition ", first->index,
          " on ", places[first->index], ") and '", name, "' (partition ",
          partition.index, " on ", places[partition.index],
          ") are the same; choose a balance that puts both into one "
          "partition, or the same ",
          kind, " for both", kRemedy);
      TORCH_CHECK_VALUE(
          is_new || first == &partition || !norms.count(tensor),
          "module with running statistics shared by partitions is not "
          "supported: '",
          first_name, "' (partition ", first->index, ") and '", name,
          "' (partition ", partition.index,
          ") are the same, and two workers would count in them at the same "
          "time; choose a balance that puts both into one partition",
          kRemedy);
    };
    for (const Layer& layer : partition.layers) {
      const auto& module = *layer.module.ptr();
      for (const auto& each : module.named_parameters()) {
        check(layer, "parameter", each);
      }
      for (const auto& each : module.named_buffers()) {
        check(layer, "buffer", each);
      }
    }
  }
}

void list_again(std::vector<Partition>& partitions) {
  bool changed = false;
  for (Partition& each : partitions) {
    each.modules.find_again();
    changed = changed || each.modules.listings() != each.checked_listings;
  }
  if (!changed) return;
  std::vector<std::string> places;
  for (Partition& each : partitions) {
    each.shared_buffers.clear();
    places.push_back(each.device.str());
  }
  find_shared_buffers(partitions);
  check_sharing(partitions, places, "device");
  for (Partition& each : partitions) {
    each.checked_listings = each.modules.listings();
  }
}

void defer_norms(std::vector<Partition>& partitions) {
  for (Partition& partition : partitions) {
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    for (const Layer& layer : partition.layers) {
      modules.push_back(layer.module.ptr());
    }
    partition.norms = std::make_shared<NormStatistics>(std::move(modules));
  }
}

bool is_off(const torch::nn::Module& module, const c10::Device& device) {
  const auto check = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.device() != device;
  };
  const auto parameters = module.parameters();
  const auto buffers = module.buffers();
  return std::ranges::any_of(parameters, check) ||
         std::ranges::any_of(buffers, check);
}

void move_layers(std::vector<Partition>& partitions) {
  for (const Partition& part : partitions) check_linked(part.device);
  for (Partition& part : partitions) {
    for (Layer& layer : part.layers) {
      if (!is_off(*layer.module.ptr(), part.device)) continue;
      // With several meta devices, tensors are created on the current one.
      const c10::DeviceGuard guard(part.device);
      layer.module.ptr()->to(part.device);
    }
  }
}

}  // namespace gpipe::internal
