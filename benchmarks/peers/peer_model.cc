#include "benchmarks/peers/peer_model.h"

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <iostream>

#include "balancing/plan.h"
#include "balancing/profile.h"
#include "benchmarks/harness/experiment.h"
#include "gpipe/base/files.h"
#include "gpipe/base/text.h"
#include "gpipe/meta.h"
#include "models/amoebanet.h"
#include "models/exported/exported.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace gpipe::benchmarks {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;

constexpr int64_t kResNetClasses = 1000, kAmoebaNetClasses = 10;
constexpr int64_t kUNetConvs = 2;
constexpr int64_t kHeads = 4;

torch::nn::Sequential mlp(const PeerModelSizes& sizes) {
  torch::nn::Sequential layers;
  for (int64_t k = 0; k < sizes.depth; ++k) {
    layers->push_back(torch::nn::Linear(sizes.width, sizes.width));
    layers->push_back(torch::nn::ReLU());
  }
  return layers;
}

// Returns the blocks of a Transformer, without embedding, last norm and output.
torch::nn::Sequential blocks(const PeerModelSizes& sizes) {
  const auto model = models::transformer(models::TransformerOptions()
                                             .num_layers(sizes.depth)
                                             .width(sizes.width)
                                             .feed_forward(4 * sizes.width)
                                             .heads(kHeads)
                                             .vocabulary(1)
                                             .sequence(sizes.side)
                                             .norm(models::NormPlace::kPost)
                                             .dropout(0));
  torch::nn::Sequential layers;
  auto layer = model->begin() + 1;
  for (int64_t k = 0; k < 2 * sizes.depth; ++k) layers->push_back(*layer++);
  return layers;
}

Tensor mean_squared_error(const Tensor& output, const Tensor& target) {
  return F::mse_loss(output, target);
}

// The functions that make a PeerModel.
struct Maker {
  std::string name;
  std::function<torch::nn::Sequential(const PeerModelSizes&)> model;
  std::function<std::vector<int64_t>(const PeerModelSizes&)>
      input;  // its shape
  std::function<Tensor(const PeerModelSizes&, const Tensor& input)> target;
  std::function<Tensor(const Tensor&, const Tensor&)> loss;
};

std::vector<int64_t> images(const PeerModelSizes& sizes) {
  return {sizes.batch, 3, sizes.side, sizes.side};
}

// Returns a function that makes a target: one of `count` classes per row.
auto classes(int64_t count) {
  return [count](const PeerModelSizes& sizes, const Tensor&) {
    return torch::randint(count, {sizes.batch}, torch::kLong);
  };
}

Tensor something_alike(const PeerModelSizes&, const Tensor& input) {
  return torch::rand_like(input);
}

const std::vector<Maker>& makers() {
  static const auto* const kMakers = new std::vector<Maker>{
      {"resnet101",
       [](const PeerModelSizes&) { return models::resnet101(kResNetClasses); },
       images, classes(kResNetClasses), cross_entropy},
      {"unet",
       [](const PeerModelSizes& sizes) {
         return models::unet(sizes.depth, kUNetConvs, sizes.width);
       },
       images,
       [](const PeerModelSizes& sizes, const Tensor&) {
         return torch::ones({sizes.batch, 1, sizes.side, sizes.side});
       },
       mask_loss},
      {"amoebanetd",
       [](const PeerModelSizes& sizes) {
         return models::amoebanetd(kAmoebaNetClasses, sizes.depth, sizes.width);
       },
       images, classes(kAmoebaNetClasses), cross_entropy},
      {"mlp", mlp,
       [](const PeerModelSizes& sizes) {
         return std::vector<int64_t>{sizes.batch, sizes.width};
       },
       something_alike, mean_squared_error},
      {"transformer", blocks,
       [](const PeerModelSizes& sizes) {
         return std::vector<int64_t>{sizes.batch, sizes.side, sizes.width};
       },
       something_alike, mean_squared_error},
  };
  return *kMakers;
}

}  // namespace

std::vector<std::string> peer_model_names() {
  std::vector<std::string> names;
  for (const Maker& maker : makers()) names.push_back(maker.name);
  return names;
}

PeerModel make_peer_model(const std::string& name, const PeerModelSizes& sizes,
                          uint64_t seed) {
  const Maker& maker =
      makers()[parse_choice("model", name, peer_model_names())];
  if (sizes.batch <= 0) {
    internal::refuse("a mini-batch needs rows, but --batch is ", sizes.batch);
  }
  PeerModel result;
  torch::manual_seed(seed);
  result.model = maker.model(sizes);
  torch::manual_seed(seed + 1);
  result.input = torch::rand(maker.input(sizes));
  result.target = maker.target(sizes, result.input);
  result.loss = maker.loss;
  return result;
}

namespace {

// Returns whether the layer `name` is of the Python module `module`, or of a
// module in it.
bool is_of(const std::string& name, std::string module) {
  std::ranges::replace(module, '.', '_');
  return name.rfind(module, 0) == 0 &&
         (name.size() == module.size() || name[module.size()] == '_');
}

}  // namespace

PeerModel exported_peer_data(const std::string& path, int64_t batch,
                             int64_t side, uint64_t seed) {
  const ExportedSignature signature = exported_signature(path);
  const int64_t words = signature.outputs.at(0).sizes.back().value();
  PeerModel result{nullptr, {}, {}, {}};
  torch::manual_seed(seed + 1);
  result.input = torch::randint(words, {batch, side}, torch::kLong);
  result.target = torch::randint(words, {batch, side}, torch::kLong);
  result.loss = cross_entropy;
  return result;
}

std::vector<int64_t> balance_of_modules(
    const std::string& path, const std::vector<std::string>& modules) {
  const ExportedModel model = [&] {
    const MetaGuard meta;
    return load_exported(path);
  }();
  const std::vector<std::string> names = model.layers->named_children().keys();
  std::vector<int64_t> balance;
  int64_t begin = 0;
  for (const std::string& module : modules) {
    const auto found = std::ranges::find_if(
        names, [&](const std::string& name) { return is_of(name, module); });
    const int64_t place = found - names.begin();
    if (found == names.end() || place <= begin) {
      internal::refuse("--cut=", module, ": ", path,
                       " has no layer that begins this module after layer ",
                       begin, "; //tools:exported lists the layers");
    }
    balance.push_back(place - begin);
    begin = place;
  }
  balance.push_back(static_cast<int64_t>(names.size()) - begin);
  return balance;
}

namespace {

// Messages between two processes of a machine over Gloo: half of the time of 64
// bytes there and back, and messages of 256 KiB to 1 MiB (docs/decisions.md).
constexpr double kLatency = 1.2e-4, kBandwidth = 2e9;
// Each message takes CPU time of both processes besides: some 0.6 ms together
// for 256 KiB of the MLP (380 ms with 56 messages, 347 ms in one process).
constexpr double kOverhead = 3e-4;

}  // namespace

void write_peer_plan(const PeerModel& model,
                     const std::vector<int64_t>& microbatches,
                     const std::string& path) {
  at::set_num_threads(2);  // both ranks together
  const auto plan =
      balancing::plan(model.model, model.input, {at::kCPU, at::kCPU},
                      balancing::PlanOptions()
                          .chunks(microbatches)
                          .checkpoints({Checkpoint::kNever})
                          .latency(kLatency)
                          .bandwidth(kBandwidth)
                          .overhead(kOverhead)
                          .profile(balancing::TimeOptions().timeout(3)));
  internal::write_file(path, balancing::to_json(plan));
  std::cout << plan;
}

}  // namespace gpipe::benchmarks
