// Norms over ranks have the bits of torch::nn::utils in one process.
#include "gpipe/distributed/runner/norms.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/testing/ranks.h"

namespace gpipe::internal {
namespace {

using testing::CommunicatorProgramEntry;
using testing::expect_ok;
using torch::Tensor;

constexpr int kNormTag = 6;
constexpr int kRanks = 3;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Layers {
  std::string name;
  std::vector<int> rank_of_layer;
  std::vector<int> without_gradient;  // ranks
  torch::Dtype type, other_type;      // of even and of odd layers
};

std::vector<Layers> settings() {
  const std::vector<int> loop{0, 1, 2}, blocks{0, 0, 1, 1, 2, 2},
      v{0, 1, 2, 2, 1, 0};
  return {
      {"one layer each", loop, {}, torch::kFloat, torch::kFloat},
      {"two layers each", blocks, {}, torch::kDouble, torch::kDouble},
      {"in a V", v, {}, torch::kFloat, torch::kFloat},
      {"two types", v, {}, torch::kFloat, torch::kDouble},
      {"bfloat16", v, {}, torch::kBFloat16, torch::kBFloat16},
      {"rank 0 without", v, {0}, torch::kFloat, torch::kFloat},
      {"rank 2 without", blocks, {2}, torch::kFloat, torch::kFloat},
      {"only rank 1", loop, {0, 2}, torch::kFloat, torch::kFloat},
      {"none", v, {0, 1, 2}, torch::kFloat, torch::kFloat},
  };
}

// Returns two parameters with and one without a gradient.
std::vector<Tensor> parameters_of(const Layers& layers, std::size_t layer) {
  const auto k = static_cast<int64_t>(layer);
  torch::manual_seed(9 + k);
  const auto type = layer % 2 == 0 ? layers.type : layers.other_type;
  bool with = true;
  for (const int rank : layers.without_gradient) {
    with = with && rank != layers.rank_of_layer[layer];
  }
  std::vector<Tensor> parameters;
  for (const int64_t size : {7 + k, int64_t{1}, 40 - k}) {
    Tensor parameter = torch::zeros({size, 3}, type).requires_grad_();
    const Tensor grad = torch::randn({size, 3}).to(type);
    if (with && size != 1) parameter.mutable_grad() = grad;
    parameters.push_back(parameter);
  }
  return parameters;
}

const CommunicatorProgramEntry kClip("clip", [](auto& world) {
  for (const Layers& layers : settings()) {
    for (const double type : {2.0, 1.0, 0.0, 3.0, kInfinity, -kInfinity}) {
      for (const double most : {0.5, 1e9}) {
        std::vector<Tensor> whole;
        std::vector<std::pair<int64_t, Tensor>> own;
        std::vector<std::size_t> place;  // of each of `own` in `whole`
        for (std::size_t k = 0; k < layers.rank_of_layer.size(); ++k) {
          const auto mine = parameters_of(layers, k);
          for (const Tensor& each : parameters_of(layers, k)) {
            if (layers.rank_of_layer[k] == world->rank()) {
              own.emplace_back(k, mine[whole.size() % 3]);
              place.push_back(whole.size());
            }
            whole.push_back(each);
          }
        }
        bool agreed = false;
        const double norm =
            clip_grad_norm(*world, {0, 1, 2}, kNormTag, own, most, type,
                           /*of_shards=*/false, agreed);
        const double expected =
            torch::nn::utils::clip_grad_norm_(whole, most, type);
        const std::string where =
            c10::str(layers.name, ", norm ", type, ", at most ", most, ": ");
        if (norm != expected) {
          throw std::runtime_error(
              c10::str(where, norm, " and not ", expected));
        }
        for (std::size_t k = 0; k < own.size(); ++k) {
          const Tensor mine = own[k].second.grad();
          const Tensor theirs = whole[place[k]].grad();
          if (mine.defined() != theirs.defined() ||
              (mine.defined() && !mine.equal(theirs))) {
            throw std::runtime_error(where + "gradients");
          }
        }
      }
    }
  }
});

TEST(Norms, AreThoseOfOneProcessToTheBit) { expect_ok("clip", kRanks); }

}  // namespace
}  // namespace gpipe::internal
