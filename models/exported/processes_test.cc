// An exported program whose partitions are processes.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <iostream>

#include "gpipe/base/crc32c.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "models/exported/exported.h"
#include "models/testing/examples.h"

namespace gpipe {
namespace {

using testing::Example;

constexpr int kMicrobatches = 4;

at::Tensor loss(const at::Tensor& output, const at::Tensor& weight) {
  return (output * weight).sum() / output.size(0);
}

// Returns a line for each gradient of `module` with its name, which ends in
// Python's, and a checksum of its bits.
std::vector<std::string> lines_of(const torch::nn::Module& module) {
  std::vector<std::string> lines;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor grad = item.value().grad().contiguous();
    lines.push_back(c10::str(item.key(), " ",
                             internal::crc32c(grad.data_ptr(), grad.nbytes())));
  }
  return lines;
}

std::vector<int64_t> balance_of(const Example& example) {
  const auto layers =
      static_cast<int64_t>(load_exported(example.path).layers->size());
  return {layers / 2, layers - layers / 2};
}

// Each rank reads the weights of its own layers only.
int train(const std::string& name) {
  at::set_num_threads(1);
  const Example example = testing::read_example(name);
  const auto world = World::connect(testing::world_options());
  DistributedPipeline pipeline(
      [&](int64_t first, int64_t count) {
        return load_exported(example.path, first, count).layers;
      },
      DistributedOptions(balance_of(example)).chunks(kMicrobatches).threads(1),
      world);
  torch::manual_seed(7);
  pipeline->train_step(example.inputs[0], example.weights[0], loss,
                       one_forward_one_backward(2, kMicrobatches),
                       TrainOptions().fixed_sum_order(true));
  for (const std::string& line : lines_of(*pipeline)) {
    std::cout << line << "\n";
  }
  return 0;
}

const testing::RankProgramEntry kGpt("train gpt", [] { return train("gpt"); });
const testing::RankProgramEntry kResized("train resized",
                                         [] { return train("resized"); });

// Expects the same gradients in two processes as in one. Returns what each
// process wrote.
std::vector<std::string> expect_bits_of_one(const std::string& name,
                                            std::size_t gradients) {
  at::set_num_threads(1);
  const Example example = testing::read_example(name);
  ExportedModel model = load_exported(example.path);
  GPipe pipeline(model.layers, GPipeOptions(balance_of(example))
                                   .devices({torch::kCPU, torch::kCPU})
                                   .chunks(kMicrobatches)
                                   .threads_per_partition(1));
  torch::manual_seed(7);
  pipeline->train_step(example.inputs[0], example.weights[0], loss,
                       one_forward_one_backward(2, kMicrobatches),
                       TrainOptions().fixed_sum_order(true));
  const std::vector<std::string> expected = lines_of(*pipeline);
  EXPECT_EQ(expected.size(), gradients);

  const auto results = testing::Ranks("train " + name, 2).wait();
  testing::expect_all_ok(results);
  const std::string found = "\n" + results[0].out + results[1].out;
  for (const std::string& line : expected) {
    EXPECT_NE(found.find("\n" + line + "\n"), std::string::npos) << line;
  }
  return {results[0].out, results[1].out};
}

TEST(ExportedProcessesTest, TwoProcessesHaveTheBitsOfOne) {
  const auto written = expect_bits_of_one("gpt", 40);
  // The tied weight belongs to one rank.
  EXPECT_EQ(written[1].find("token.weight"), std::string::npos);
}

// The last layers need the size of the input, which no tensor between them has.
TEST(ExportedProcessesTest, SizesPassFromProcessToProcess) {
  const auto written = expect_bits_of_one("resized", 10);
  EXPECT_EQ(written[1].find("stem.weight"), std::string::npos);
  EXPECT_NE(written[1].find("head.weight"), std::string::npos);
}

}  // namespace
}  // namespace gpipe
