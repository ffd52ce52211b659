// Tests the bytes that a step holds on each device.
//
// The layers are tanh, which saves only its output for backward. N is the
// number of bytes of the mini-batch at any layer, n that of a micro-batch. An
// input that the test made before is not counted.
//
// The bytes on a device are the sum over its partitions. When a tensor crosses
// to another device, the copy replaces the original, which is freed unless its
// own cell has saved it. So copies add nothing to the held bytes. They add to
// the peaks only where a comment says so.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/gpipe.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/process.h"

namespace gpipe {
namespace {

using testing::device;
using testing::devices;
using testing::options;
using torch::Tensor;

constexpr int64_t kRows = 16;
constexpr int64_t kColumns = 1024;
constexpr int64_t kLayers = 8;
constexpr int64_t kN = kRows * kColumns * 8;

// Bytes by device, in the order of places().
using Bytes = std::vector<int64_t>;

// Returns the devices of `partitions` partitions, each device once.
std::vector<torch::Device> places(int64_t partitions) {
  std::vector<torch::Device> places;
  for (const torch::Device& each : devices(partitions)) {
    if (std::find(places.begin(), places.end(), each) == places.end()) {
      places.push_back(each);
    }
  }
  return places;
}

// Sums over the partitions of each device.
Bytes by_place(int64_t partitions,
               const std::function<int64_t(int64_t)>& of_partition) {
  const auto where = places(partitions);
  Bytes bytes(where.size());
  for (int64_t j = 0; j < partitions; ++j) {
    const auto place = std::find(where.begin(), where.end(), device(j));
    bytes[place - where.begin()] += of_partition(j);
  }
  return bytes;
}

int64_t total(const Bytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

struct Measured {
  Bytes after_forward;  // held by the graph and the output
  Bytes peak_forward;
  Bytes peak_backward;  // both peaks are above the bytes before the step
};

class Memory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (device().is_cpu()) instruments::CountingAllocator::install();
  }

  static GPipe pipeline_of(int64_t partitions, int64_t chunks,
                           Checkpoint mode = Checkpoint::kExceptLast) {
    torch::nn::Sequential model;
    for (int64_t k = 0; k < kLayers; ++k) model->push_back(torch::nn::Tanh());
    return GPipe(model,
                 options(std::vector<int64_t>(partitions, kLayers / partitions),
                         chunks, mode)
                     .threads_per_partition(1));
  }

  static Tensor input(int64_t rows = kRows) {
    return torch::randn({rows, kColumns}, torch::kDouble).to(device());
  }

  static Bytes live(int64_t partitions) {
    Bytes bytes;
    for (const auto& each : places(partitions)) {
      bytes.push_back(instruments::live_bytes(each));
    }
    return bytes;
  }
  static Bytes peak(int64_t partitions) {
    Bytes bytes;
    for (const auto& each : places(partitions)) {
      bytes.push_back(instruments::peak_bytes(each));
    }
    return bytes;
  }
  static void reset_peak(int64_t partitions) {
    for (const auto& each : places(partitions)) {
      instruments::reset_peak_bytes(each);
    }
  }

  static Bytes minus(Bytes a, const Bytes& b) {
    for (std::size_t k = 0; k < a.size(); ++k) a[k] -= b[k];
    return a;
  }

  // The engine's thread of an accelerator may hold a gradient slightly longer
  // than backward() takes.
  static void expect_live(int64_t partitions, const Bytes& before,
                          const Bytes& expected) {
    testing::comes_true(
        [&] { return minus(live(partitions), before) == expected; });
    EXPECT_EQ(minus(live(partitions), before), expected);
  }

  static Measured measure(int64_t partitions, int64_t chunks, Checkpoint mode,
                          int64_t rows = kRows) {
    GPipe pipeline = pipeline_of(partitions, chunks, mode);
    const Tensor x = input(rows).requires_grad_();
    const Tensor grad = torch::ones({rows, kColumns}, torch::kDouble)
                            .to(device(partitions - 1));
    const Bytes before = live(partitions);
    reset_peak(partitions);
    Measured bytes;
    Tensor output = pipeline->forward(x);
    bytes.after_forward = minus(live(partitions), before);
    bytes.peak_forward = minus(peak(partitions), before);
    reset_peak(partitions);
    output.backward(grad);
    bytes.peak_backward = minus(peak(partitions), before);
    output.reset();
    // Only the input's gradient is still held.
    expect_live(partitions, before, by_place(partitions, [&](int64_t j) {
                  return j == 0 ? rows * kColumns * 8 : 0;
                }));
    return bytes;
  }
};

// Between forward and backward, the cells' graphs or inputs are held, and the
// output. The output is a separate tensor if there are several micro-batches.
TEST_F(Memory, KeepsInputsOfCheckpointedCellsAndGraphsOfOthers) {
  for (const int64_t p : {1, 2, 4}) {
    for (const int64_t m : {1, 2, 4, 8}) {
      SCOPED_TRACE("partitions " + std::to_string(p) + ", chunks " +
                   std::to_string(m));
      const int64_t n = kN / m, graph = kLayers / p * n;
      // The user owns the inputs of the first partition.
      const auto cell_input = [&](int64_t j) { return j > 0 ? n : 0; };
      const auto own_output = [&](int64_t j) {
        return j == p - 1 && m > 1 ? kN : 0;
      };
      EXPECT_EQ(
          measure(p, m, Checkpoint::kNever).after_forward,
          by_place(p, [&](int64_t j) { return m * graph + own_output(j); }));
      EXPECT_EQ(measure(p, m, Checkpoint::kExceptLast).after_forward,
                by_place(p, [&](int64_t j) {
                  return (m - 1) * cell_input(j) + graph + own_output(j);
                }));
      EXPECT_EQ(measure(p, m, Checkpoint::kAlways).after_forward,
                by_place(p, [&](int64_t j) {
                  return m * cell_input(j) + (j == p - 1 ? kN : 0);
                }));
    }
  }
}

// With one partition nothing runs in parallel, so the peaks are exact, too. A
// backward of tanh holds two gradients: its own and the next one. By the second
// backward the output of the last tanh has been freed, unless another owner
// holds it.
TEST_F(Memory, PeaksAtOneGraphOrAtTheSumOfAll) {
  for (const int64_t m : {1, 2, 4, 8}) {
    SCOPED_TRACE("chunks " + std::to_string(m));
    const int64_t n = kN / m;
    const int64_t graph = kLayers * n;

    const Measured always = measure(1, m, Checkpoint::kAlways);
    // The outputs so far and the graph of the last cell; or, if that is more,
    // the outputs and the tensor in which they are concatenated.
    EXPECT_EQ(total(always.peak_forward),
              std::max((m - 1) * n + graph, m > 1 ? 2 * kN : 0));
    // The output, one graph, and the parts of the input's gradient so far.
    EXPECT_EQ(total(always.peak_backward), kN + graph + n + (m - 1) * n);

    const Measured never = measure(1, m, Checkpoint::kNever);
    EXPECT_EQ(never.peak_forward, never.after_forward);
    EXPECT_EQ(total(never.peak_backward),
              total(never.after_forward) + (m > 1 ? n : 2 * n));

    const Measured except_last = measure(1, m, Checkpoint::kExceptLast);
    EXPECT_GE(total(except_last.peak_backward),
              total(always.peak_backward) - n);
    EXPECT_LE(total(except_last.peak_backward), total(never.peak_backward));
  }
}

// With several partitions, timing decides which of them hold a graph at the
// same time. But each holds at most one, for any number of micro-batches.
TEST_F(Memory, HoldsAtMostOneRecomputedCellPerPartition) {
  for (const int64_t p : {2, 4}) {
    for (const int64_t m : {2, 4, 8}) {
      SCOPED_TRACE("partitions " + std::to_string(p) + ", chunks " +
                   std::to_string(m));
      const int64_t n = kN / m;
      const int64_t cell = kLayers / p * n + 2 * n;  // graph and gradients
      const Measured always = measure(p, m, Checkpoint::kAlways);
      // A finished cell holds a gradient instead of its input, until the
      // previous partition or the input's gradient takes it.
      Bytes most = by_place(
          p, [&](int64_t j) { return kN + cell + (j == p - 1 ? kN : 0); });
      // The first device also concatenates the input's gradient.
      most[0] = std::max(most[0], 2 * kN);
      for (std::size_t k = 0; k < most.size(); ++k) {
        EXPECT_LE(always.peak_backward[k], most[k]) << "device " << k;
      }
      EXPECT_LT(total(always.peak_backward),
                total(measure(p, m, Checkpoint::kNever).peak_backward));
    }
  }
}

// With one device per partition the peaks are exact again, except for outputs
// that wait until the next partition takes them.
TEST_F(Memory, PeaksOfADeviceAreThoseOfItsPartition) {
  if (places(2).size() < 2) GTEST_SKIP() << "partitions share a device";
  for (const int64_t p : {2, 4}) {
    if (places(p).size() < static_cast<std::size_t>(p)) continue;
    for (const int64_t m : {1, 2, 4, 8}) {
      const int64_t n = kN / m, graph = kLayers / p * n;
      const Measured always = measure(p, m, Checkpoint::kAlways);
      const Measured never = measure(p, m, Checkpoint::kNever);
      const Measured except_last = measure(p, m, Checkpoint::kExceptLast);
      EXPECT_EQ(never.peak_forward, never.after_forward);
      for (int64_t j = 0; j < p; ++j) {
        SCOPED_TRACE("partition " + std::to_string(j) + " of " +
                     std::to_string(p) + ", chunks " + std::to_string(m));
        const bool first = j == 0, last = j == p - 1;
        const int64_t inputs = first ? 0 : kN;

        if (last) {
          // The same as with one partition, plus the inputs.
          EXPECT_EQ(always.peak_forward[j],
                    inputs + std::max((m - 1) * n + graph, m > 1 ? 2 * kN : 0));
        } else {
          // Up to all earlier outputs may wait for the next partition.
          EXPECT_GE(always.peak_forward[j], inputs + graph);
          EXPECT_LE(always.peak_forward[j], inputs + graph + (m - 1) * n);
        }

        // The incoming gradient is a copy, except that of the output, which the
        // user owns.
        if (first) {
          EXPECT_EQ(always.peak_backward[j],
                    std::max((m - 1) * n + graph + 2 * n, m > 1 ? 2 * kN : 0));
        } else {
          EXPECT_EQ(always.peak_backward[j],
                    inputs + graph + (last ? kN + n : 2 * n));
        }
        EXPECT_EQ(never.peak_backward[j],
                  never.after_forward[j] + (last && m > 1 ? n : 2 * n));
        EXPECT_GE(except_last.peak_backward[j], always.peak_backward[j] - n);
        EXPECT_LE(except_last.peak_backward[j], never.peak_backward[j]);
      }
    }
  }
}

TEST_F(Memory, LeavesNothingBehindWhenTheGraphIsDropped) {
  GPipe pipeline = pipeline_of(2, 4);
  const Tensor x = input().requires_grad_();
  const Bytes before = live(2);
  for (int step = 0; step < 3; ++step) pipeline->forward(x);
  EXPECT_EQ(live(2), before);
}

TEST_F(Memory, KeepsNothingWithoutGradients) {
  GPipe pipeline = pipeline_of(2, 4);
  const Tensor x = input();
  torch::NoGradGuard no_grad;
  const Bytes before = live(2);
  const Tensor output = pipeline->forward(x);
  EXPECT_EQ(minus(live(2), before),
            by_place(2, [](int64_t j) { return j == 1 ? kN : 0; }));
}

}  // namespace
}  // namespace gpipe
