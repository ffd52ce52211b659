// What only a real accelerator can get wrong: kernels of cuDNN, streams whose
// work takes time, and an allocator that gives freed memory back. Each test
// compares a run with itself under harder conditions. tools/gpu_check.sh runs
// them one by one; the last line that a test prints is the reason there. On
// other devices the sizes are small.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/base/devices.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using testing::device;
using testing::devices;
using testing::mean_square;
using testing::options;
using torch::Tensor;
namespace nn = torch::nn;

// The loss and the gradients of all parameters, as copies on the CPU.
using Results = std::vector<Tensor>;

// Returns `large` on a GPU, else `small`.
int64_t sized(int64_t large, int64_t small) {
  return device().is_cuda() ? large : small;
}

// Returns two partitions, or one for each accelerator if there are more.
std::vector<c10::Device> all_partitions() {
  return devices(std::max<std::size_t>(2, at::accelerator::deviceCount()));
}

// Runs one step after seeding LibTorch's generators, and clears the gradients.
Results results_of_step(GPipe& pipeline, const Tensor& input,
                        const Tensor& target, const Schedule& schedule) {
  torch::manual_seed(2);
  const StepResult step = pipeline->train_step(
      input, target.to(pipeline->devices().back()), mean_square, schedule);
  Results results{step.loss.detach().cpu()};
  for (const Tensor& parameter : pipeline->parameters()) {
    results.push_back(parameter.grad().to(torch::kCPU, parameter.scalar_type(),
                                          /*non_blocking=*/false,
                                          /*copy=*/true));
  }
  pipeline->zero_grad();
  return results;
}

// Returns the largest absolute difference, divided by the largest absolute
// value of each tensor; infinity if a value is not finite. 0 means equal.
double largest_difference(const Results& left, const Results& right) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (left.size() != right.size()) return kInfinity;
  double largest = 0;
  for (std::size_t k = 0; k < left.size(); ++k) {
    if (!left[k].isfinite().all().item<bool>()) return kInfinity;
    if (left[k].equal(right[k])) continue;
    const double difference = left[k].sub(right[k]).abs().max().item<double>();
    const double scale = right[k].abs().max().item<double>();
    largest = std::max(largest, scale > 0 ? difference / scale : kInfinity);
  }
  return largest;
}

// An LSTM of two layers with dropout between them, which returns its output
// sequence only.
struct DropoutLstmImpl : nn::Module {
  explicit DropoutLstmImpl(int64_t size)
      : lstm(register_module("lstm", nn::LSTM(nn::LSTMOptions(size, size)
                                                  .num_layers(2)
                                                  .dropout(0.5)
                                                  .batch_first(true)))) {}
  Tensor forward(const Tensor& input) {
    return std::get<0>(lstm->forward(input));
  }
  nn::LSTM lstm;
};
TORCH_MODULE(DropoutLstm);

Results train_lstm(Checkpoint mode) {
  constexpr int64_t kSize = 64, kLength = 12, kRows = 8, kChunks = 4;
  torch::manual_seed(1);
  const nn::Sequential layers{DropoutLstm(kSize), DropoutLstm(kSize)};
  GPipe pipeline(layers, options({1, 1}, kChunks, mode));
  const auto input = torch::randn({kChunks * kRows, kLength, kSize});
  return results_of_step(pipeline, input.to(device()), torch::zeros_like(input),
                         one_forward_one_backward(2, kChunks));
}

// cuDNN may add up in another order each time. So the difference of two equal
// runs is printed beside that of the modes. A wrong dropout mask changes
// gradients by their own size.
TEST(Hardware, ADropoutLstmHasTheSameGradientsWhenItIsRecomputed) {
  const double rounding = device().is_cuda() ? 1e-4 : 0;
  const Results never = train_lstm(Checkpoint::kNever);
  std::cout << "largest relative difference of two runs without checkpointing: "
            << largest_difference(train_lstm(Checkpoint::kNever), never)
            << std::endl;
  const double difference =
      largest_difference(train_lstm(Checkpoint::kAlways), never);
  std::cout << "largest relative difference of checkpointing always and never: "
            << difference << std::endl;
  EXPECT_LE(difference, rounding);
}

// Attention with dropout. On CUDA, float32 and bfloat16 have different kernels,
// and these call another operator that draws.
struct DropoutAttentionImpl : nn::Module {
  explicit DropoutAttentionImpl(int64_t size)
      : linear(register_module("linear", nn::Linear(size, size))) {}
  Tensor forward(const Tensor& input) {
    const Tensor x = linear(input).unflatten(2, {4, -1}).transpose(1, 2);
    return at::scaled_dot_product_attention(x, x, x, /*attn_mask=*/{},
                                            /*dropout_p=*/0.5)
        .transpose(1, 2)
        .flatten(2);
  }
  nn::Linear linear;
};
TORCH_MODULE(DropoutAttention);

Results train_attention(Checkpoint mode, torch::Dtype dtype) {
  constexpr int64_t kSize = 64, kLength = 16, kRows = 8, kChunks = 4;
  torch::manual_seed(1);
  nn::Sequential layers{DropoutAttention(kSize), DropoutAttention(kSize)};
  layers->to(dtype);
  GPipe pipeline(layers, options({1, 1}, kChunks, mode));
  const auto input = torch::randn({kChunks * kRows, kLength, kSize}).to(dtype);
  return results_of_step(pipeline, input.to(device()), torch::zeros_like(input),
                         one_forward_one_backward(2, kChunks));
}

// The gradients of fused attention are sums by atomic additions.
TEST(Hardware, DropoutAttentionHasTheSameGradientsWhenItIsRecomputed) {
  for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16}) {
    const double cuda = dtype == torch::kFloat ? 1e-4 : 0.05;
    const double difference =
        largest_difference(train_attention(Checkpoint::kAlways, dtype),
                           train_attention(Checkpoint::kNever, dtype));
    std::cout << "largest relative difference of checkpointing always and "
                 "never in "
              << dtype << ": " << difference << std::endl;
    EXPECT_LE(difference, device().is_cuda() ? cuda : 0);
  }
}

// Draws the lengths of random delays. Thread-safe.
class RandomDelays {
 public:
  // `longest`: the largest number of products; 0 turns delays off.
  void restart(uint64_t seed, int64_t longest) {
    seed_ = seed;
    longest_ = longest;
    calls_ = 0;
  }

  // Occupies the current stream of the device of `like` with 0 to `longest`
  // products of matrices.
  void occupy(const Tensor& like) {
    const uint64_t call = calls_++;
    if (longest_ == 0) return;
    std::mt19937_64 generator(seed_ * 1000003 + call);
    const int64_t products =
        std::uniform_int_distribution<int64_t>(0, longest_)(generator);
    const torch::NoGradGuard no_grad;
    const auto matrix = torch::zeros({256, 256}, like.options());
    for (int64_t k = 0; k < products; ++k) matrix.mm(matrix);
  }

 private:
  std::atomic<uint64_t> seed_{0}, calls_{0};
  std::atomic<int64_t> longest_{0};
};

RandomDelays delays;

// An identity that occupies its stream in forward and in backward.
struct SlowIdentity : torch::autograd::Function<SlowIdentity> {
  static Tensor forward(torch::autograd::AutogradContext*,
                        const Tensor& input) {
    delays.occupy(input);
    return input.clone();
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext*, torch::autograd::tensor_list grads) {
    delays.occupy(grads[0]);
    return {grads[0].clone()};
  }
};

TEST(Hardware, RandomDelaysChangeNoBit) {
  constexpr int64_t kWidth = 64, kRows = 16, kChunks = 8;
  const int64_t rounds = sized(5, 2), longest = sized(40, 4);
  const auto places = all_partitions();
  torch::manual_seed(3);
  nn::Sequential layers;
  for (std::size_t j = 0; j < places.size(); ++j) {
    layers->push_back(nn::Linear(kWidth, kWidth));
    layers->push_back(testing::layer(
        [](const Tensor& input) { return SlowIdentity::apply(input); }));
  }
  GPipe pipeline(layers, options(std::vector<int64_t>(places.size(), 2)));
  const auto input = torch::randn({kChunks * kRows, kWidth});
  for (const char* name : {"fill-drain", "1f1b", "zb-h1"}) {
    const Schedule schedule =
        named_schedule(name, static_cast<int>(places.size()), kChunks,
                       /*stages_per_rank=*/1);
    const auto step = [&](uint64_t seed, int64_t longest) {
      delays.restart(seed, longest);
      return results_of_step(pipeline, input.to(device()), input, schedule);
    };
    const Results expected = step(0, 0);
    for (int64_t round = 1; round <= rounds; ++round) {
      ASSERT_EQ(largest_difference(step(round, longest), expected), 0)
          << name << ", round " << round;
    }
    std::cout << name << ": " << rounds << " rounds with equal bits\n";
  }
  std::cout << "random delays change no bit" << std::endl;
}

// Three layers per partition, `width` wide, without checkpointing. Input and
// output have one column, so that their size does not matter.
GPipe wide_pipeline(int64_t width) {
  torch::manual_seed(0);
  const std::size_t partitions = all_partitions().size();
  nn::Sequential layers;
  for (std::size_t j = 0; j < partitions; ++j) {
    layers->push_back(nn::Linear(j == 0 ? 1 : width, width));
    layers->push_back(nn::Tanh());
    layers->push_back(nn::Linear(width, j + 1 < partitions ? width : 1));
  }
  return GPipe(layers, options(std::vector<int64_t>(partitions, 3),
                               /*chunks=*/1, Checkpoint::kNever));
}

constexpr auto kAll =
    static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

// The highest memory of a device during a step, in bytes. `active` and
// `allocated` count from the bytes in use before the step. `active` also counts
// freed blocks that a stream may still use.
struct PeakBytes {
  int64_t active = 0, allocated = 0, reserved = 0;
};

// Returns the peaks of 1F1B steps with `kMicrobatches` in all, by device. How
// far a worker is ahead of another one differs from one to the next.
std::vector<PeakBytes> peaks_of_steps(int64_t chunks, int64_t rows,
                                      int64_t width) {
  constexpr int64_t kMicrobatches = 192;
  GPipe pipeline = wide_pipeline(width);
  const auto& places = pipeline->devices();
  const auto schedule = one_forward_one_backward(
      static_cast<int>(places.size()), static_cast<int>(chunks));
  const auto input = torch::rand({chunks * rows, 1}).to(places.front());
  const auto target = torch::rand({chunks * rows, 1}).to(places.back());
  const auto step = [&] {
    pipeline->train_step(input, target, mean_square, schedule);
    pipeline->zero_grad();
    synchronize(places);
  };
  step();  // makes the allocations that stay, such as workspaces of cuBLAS
  at::accelerator::emptyCache();
  std::vector<PeakBytes> peaks;
  for (const auto& each : each_once(places)) {
    const auto stats = at::accelerator::getDeviceStats(each.index());
    peaks.push_back({-stats.active_bytes[kAll].current,
                     -stats.allocated_bytes[kAll].current});
    at::accelerator::resetPeakStats(each.index());
  }
  for (int64_t k = 0; k < kMicrobatches / chunks; ++k) step();
  for (std::size_t k = 0; k < peaks.size(); ++k) {
    const auto stats =
        at::accelerator::getDeviceStats(each_once(places)[k].index());
    peaks[k].active += stats.active_bytes[kAll].peak;
    peaks[k].allocated += stats.allocated_bytes[kAll].peak;
    peaks[k].reserved = stats.reserved_bytes[kAll].peak;
  }
  return peaks;
}

// 1F1B holds min(m, p - r) micro-batches on rank r, so that the peaks do not
// grow with m.
TEST(Hardware, PeaksDoNotGrowWithTheNumberOfMicrobatches) {
  if (device().is_cpu()) GTEST_SKIP() << "a CPU does not count active bytes";
  const int64_t rows = sized(2048, 64), width = sized(2048, 128);
  const auto few = peaks_of_steps(8, rows, width);
  const auto many = peaks_of_steps(64, rows, width);
  ASSERT_EQ(few.size(), many.size());
  std::cout << "Peaks of a 1F1B step with 8 and with 64 micro-batches, in "
               "bytes by device:\n";
  for (std::size_t k = 0; k < few.size(); ++k) {
    std::cout << "active " << few[k].active << ", " << many[k].active
              << "; allocated " << few[k].allocated << ", " << many[k].allocated
              << "; reserved " << few[k].reserved << ", " << many[k].reserved
              << "\n";
    // A micro-batch keeps at least the outputs of Linear and Tanh.
    EXPECT_GE(few[k].allocated, 2 * rows * width * 4);
    EXPECT_LE(many[k].allocated, few[k].allocated * 5 / 4);
    // Every allocated byte is active, unless the allocator does not count.
    if (few[k].active < few[k].allocated) continue;
    EXPECT_LE(many[k].active, few[k].active * 5 / 4);
  }
  std::cout << "peaks of active and allocated bytes grow by at most a quarter"
            << std::endl;
}

// Runs steps whose micro-batches have more rows each time, so that cached
// blocks of earlier steps do not fit.
Results growing_steps(GPipe& pipeline, int64_t rows) {
  constexpr int64_t kChunks = 4, kSteps = 6;
  const auto schedule = one_forward_one_backward(
      static_cast<int>(pipeline->devices().size()), kChunks);
  Results all;
  for (int64_t step = 1; step <= kSteps; ++step) {
    torch::manual_seed(step);
    const auto input = torch::rand({kChunks * rows * step / kSteps, 1});
    for (auto& result :
         results_of_step(pipeline, input.to(device()), input, schedule)) {
      all.push_back(std::move(result));
    }
  }
  return all;
}

// Allocates memory until `free` bytes are left on the device. Returns the
// tensor that holds the memory; undefined if less than `free` is left already.
Tensor fill(const c10::Device& device, int64_t free) {
  const auto now = static_cast<int64_t>(
      at::accelerator::getMemoryInfo(device.index()).first);
  if (now <= free) return {};
  return torch::empty({now - free},
                      torch::TensorOptions(torch::kByte).device(device));
}

int64_t retries(const std::vector<c10::Device>& places) {
  int64_t sum = 0;
  for (const auto& each : places) {
    sum += at::accelerator::getDeviceStats(each.index()).num_alloc_retries;
  }
  return sum;
}

// The allocator has to return cached blocks to the device, which then waits for
// all its streams.
TEST(Hardware, NearlyFullMemoryChangesNoBit) {
  if (!std::getenv("GPIPE_TEST_FILLS_MEMORY")) {
    GTEST_SKIP() << "fills the memory of the devices, which must be idle, with "
                    "GPIPE_TEST_FILLS_MEMORY=1 only";
  }
  if (device().is_cpu())
    GTEST_SKIP() << "a CPU has no limit of memory to reach";
  const int64_t rows = sized(2048, 64);
  GPipe pipeline = wide_pipeline(sized(2048, 128));
  const auto places = each_once(pipeline->devices());
  for (const auto& each : places) {
    at::accelerator::resetPeakStats(each.index());
  }
  const Results expected = growing_steps(pipeline, rows);
  std::vector<int64_t> needed;
  for (const auto& each : places) {
    const auto bytes =
        at::accelerator::getDeviceStats(each.index()).allocated_bytes[kAll];
    needed.push_back(bytes.peak - bytes.current);
  }
  bool reached = false;
  for (const double share : {2.0, 1.6, 1.3, 1.15, 1.05}) {
    synchronize(places);
    at::accelerator::emptyCache();
    std::vector<Tensor> fillers;
    for (std::size_t k = 0; k < places.size(); ++k) {
      const auto free = share * static_cast<double>(needed[k]);
      fillers.push_back(fill(places[k], static_cast<int64_t>(free)));
    }
    const int64_t before = retries(places);
    std::cout << share << " times the needed memory is free: " << std::flush;
    try {
      EXPECT_EQ(largest_difference(growing_steps(pipeline, rows), expected), 0);
      const int64_t count = retries(places) - before;
      std::cout << count << " retries of the allocator" << std::endl;
      reached = reached || count > 0;
    } catch (const c10::OutOfMemoryError&) {
      std::cout << "out of memory" << std::endl;
      pipeline->zero_grad();
    }
  }
  if (!reached) GTEST_SKIP() << "no completed step made the allocator retry";
  std::cout << "equal bits with retries of the allocator" << std::endl;
}

// For tools/gpu_check.sh.
TEST(Hardware, Devices) {
  const int count = at::accelerator::deviceCount();
  std::cout << "accelerators: " << count << std::endl;
  EXPECT_GE(count, device().is_cpu() ? 0 : 1);
}

}  // namespace
}  // namespace gpipe
