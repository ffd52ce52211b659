#include "tools/gpu/gpu_checks.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <cstddef>
#include <random>
#include <sstream>
#include <tuple>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "tools/gpu/gpu_steps.h"

namespace gpipe::tools {
namespace {

using Results = std::vector<at::Tensor>;

// Draws the lengths of random delays. Thread-safe.
class RandomDelays {
 public:
  // `longest`: the largest number of products; 0 turns delays off.
  void restart(uint64_t seed, int longest) {
    seed_ = seed;
    longest_ = longest;
    calls_ = 0;
  }

  // Occupies the current stream of the device of `like` with 0 to `longest`
  // products of matrices.
  void occupy(const at::Tensor& like) {
    const uint64_t call = calls_++;
    if (longest_ == 0) return;
    std::mt19937_64 generator(seed_ * 1000003 + call);
    const int products =
        std::uniform_int_distribution<int>(0, longest_)(generator);
    if (products == 0) return;
    const at::NoGradGuard no_grad;
    const auto matrix = torch::zeros({kSize, kSize}, like.options());
    for (int k = 0; k < products; ++k) matrix.mm(matrix);
  }

 private:
  static constexpr int64_t kSize = 256;
  std::atomic<uint64_t> seed_{0}, calls_{0};
  std::atomic<int> longest_{0};
};

RandomDelays& random_delays() {
  static RandomDelays delays;
  return delays;
}

// An identity that occupies its stream in forward and in backward.
struct SlowIdentity : torch::autograd::Function<SlowIdentity> {
  static at::Tensor forward(torch::autograd::AutogradContext*,
                            const at::Tensor& input) {
    random_delays().occupy(input);
    return input.clone();
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext*, torch::autograd::tensor_list grads) {
    random_delays().occupy(grads[0]);
    return {grads[0].clone()};
  }
};

struct SlowLayerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    return SlowIdentity::apply(input);
  }
};
TORCH_MODULE(SlowLayer);

// An LSTM of two layers with dropout between them, which returns its output
// sequence only.
struct DropoutLstmImpl : torch::nn::Module {
  explicit DropoutLstmImpl(int64_t size)
      : lstm(register_module("lstm",
                             torch::nn::LSTM(torch::nn::LSTMOptions(size, size)
                                                 .num_layers(2)
                                                 .dropout(0.5)
                                                 .batch_first(true)))) {}
  at::Tensor forward(const at::Tensor& input) {
    return std::get<0>(lstm->forward(input));
  }
  torch::nn::LSTM lstm;
};
TORCH_MODULE(DropoutLstm);

Results train_lstm(const std::vector<c10::Device>& devices,
                   Checkpoint checkpoint) {
  constexpr int64_t kSize = 64, kLength = 12, kRows = 8, kChunks = 4;
  torch::manual_seed(1);
  torch::nn::Sequential layers;
  for (std::size_t j = 0; j < devices.size(); ++j) {
    layers->push_back(DropoutLstm(kSize));
  }
  GPipe pipeline(layers, GPipeOptions(std::vector<int64_t>(devices.size(), 1))
                             .devices(devices)
                             .checkpoint(checkpoint));
  const auto input = torch::randn({kChunks * kRows, kLength, kSize});
  return results_of_step(
      pipeline, input, torch::zeros_like(input),
      one_forward_one_backward(static_cast<int>(devices.size()), kChunks),
      /*seed=*/2);
}

}  // namespace

CheckResult check_lstm(const std::vector<c10::Device>& devices) {
  // A wrong dropout mask changes gradients by their own size.
  constexpr double kRounding = 1e-4;
  const Results never = train_lstm(devices, Checkpoint::kNever);
  const double again =
      largest_difference(train_lstm(devices, Checkpoint::kNever), never);
  const double always =
      largest_difference(train_lstm(devices, Checkpoint::kAlways), never);
  std::ostringstream text;
  text << "largest relative difference of two runs without checkpointing: "
       << again << "\nlargest relative difference of checkpointing always and "
       << "never: " << always
       << (always <= kRounding ? ", at most " : ", above ") << kRounding;
  return {always <= kRounding ? CheckOutcome::kPassed : CheckOutcome::kFailed,
          text.str()};
}

CheckResult check_order(const std::vector<c10::Device>& devices,
                        int64_t rounds) {
  constexpr int64_t kWidth = 64, kRows = 16, kChunks = 8;
  constexpr int kLongest = 40;
  const auto partitions = static_cast<int64_t>(devices.size());
  torch::manual_seed(3);
  torch::nn::Sequential layers;
  for (int64_t j = 0; j < partitions; ++j) {
    layers->push_back(torch::nn::Linear(kWidth, kWidth));
    layers->push_back(SlowLayer());
  }
  GPipe pipeline(layers, GPipeOptions(std::vector<int64_t>(devices.size(), 2))
                             .devices(devices)
                             .checkpoint(Checkpoint::kExceptLast));
  const auto input = torch::randn({kChunks * kRows, kWidth});
  std::ostringstream text;
  for (const char* name : {"fill-drain", "1f1b", "zb-h1"}) {
    const Schedule schedule = named_schedule(name, static_cast<int>(partitions),
                                             kChunks, /*stages_per_rank=*/1);
    random_delays().restart(0, 0);
    const Results expected =
        results_of_step(pipeline, input, input, schedule, 0);
    for (int64_t round = 1; round <= rounds; ++round) {
      random_delays().restart(static_cast<uint64_t>(round), kLongest);
      const double difference = largest_difference(
          results_of_step(pipeline, input, input, schedule, 0), expected);
      if (difference == 0) continue;
      text << name << ", round " << round << " with random delays: largest "
           << "relative difference " << difference;
      return {CheckOutcome::kFailed, text.str()};
    }
    text << name << ": " << rounds << " rounds with equal bits\n";
  }
  text << "random delays change no bit";
  return {CheckOutcome::kPassed, text.str()};
}

}  // namespace gpipe::tools
