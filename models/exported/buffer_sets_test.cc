// Programs that keep earlier tokens in buffers, with several sequences in
// flight.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "models/exported/exported.h"
#include "models/exported/testing/examples.h"
#include "models/weights/safetensors.h"

namespace gpipe {
namespace {

using Tensors = std::vector<at::Tensor>;

// A sequence that make.py has generated, and its logits in one window.
struct Sequence {
  at::Tensor tokens, logits;
  int64_t done = 0;

  explicit Sequence(int number) {
    const StateDict all =
        read_safetensors(testing::example_file("generated.safetensors"))
            .tensors;
    tokens = all["tokens." + std::to_string(number)];
    logits = all["logits." + std::to_string(number)];
  }

  // Returns the input of the step of the next token.
  Tensors next() {
    const int64_t at = done++;
    return {tokens.slice(0, at, at + 1).unsqueeze(0), at::tensor({at})};
  }

  void expect_logits(const at::Tensor& output) const {
    EXPECT_TRUE(at::allclose(output[0][0], logits[done - 1], 1e-4, 1e-5))
        << done;
  }
};

class BufferSetsTest : public ::testing::Test {
 protected:
  BufferSetsTest()
      : model_(load_exported(testing::example_file("stepped.pt2"))) {
    model_.layers->eval();
    const auto layers = static_cast<int64_t>(model_.layers->size());
    pipeline_ =
        GPipe(model_.layers, GPipeOptions({layers / 2, layers - layers / 2})
                                 .devices({at::kCPU, at::kCPU}));
  }

  // Runs one token of each sequence, with these sets of buffers.
  void step(const std::vector<Sequence*>& sequences,
            std::vector<int64_t> sets) {
    const c10::NoGradGuard no_grad;
    Microbatches<Tensors> input;
    for (Sequence* each : sequences) input.parts.push_back(each->next());
    model_.use_buffer_sets(std::move(sets));
    const Microbatches<at::Tensor> output = pipeline_->forward(input);
    for (std::size_t k = 0; k < sequences.size(); ++k) {
      sequences[k]->expect_logits(output.parts[k]);
    }
  }

  ExportedModel model_;
  GPipe pipeline_{nullptr};
};

TEST_F(BufferSetsTest, EachSequenceHasItsOwnBuffers) {
  Sequence a(0), b(1), c(2);
  step({&a}, {4});
  step({&a, &b}, {4, 7});
  step({&b, &a}, {7, 4});
  step({&c, &b}, {0, 7});
  // Set 4 was deleted: its buffers begin again.
  a.done = 0;
  step({&c, &a, &b}, {0, 4, 7});
  while (c.done < c.tokens.size(0)) step({&c}, {0});
  for (const at::Tensor& each : model_.layers->buffers()) {
    EXPECT_EQ(each.count_nonzero().item<int64_t>(), 0);
  }
}

TEST_F(BufferSetsTest, AMicrobatchWithoutASetIsAnError) {
  Sequence a(0), b(1);
  try {
    step({&a, &b}, {4});
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_NE(
        std::string(error.what())
            .find("there are 1 sets of buffers, but this is micro-batch 1"),
        std::string::npos)
        << error.what();
  }
}

TEST_F(BufferSetsTest, WithoutSetsEvalRefusesChangesOfBuffers) {
  Sequence a(0);
  EXPECT_THROW(step({&a}, {}), c10::ValueError);
}

TEST(ExportedStateTest, TheSignatureHasTheBuffersThatACallReadsAndChanges) {
  const ExportedSignature step =
      exported_signature(testing::example_file("stepped.pt2"));
  std::vector<std::string> state;
  for (const ExportedTensor& each : step.state) {
    state.push_back(each.name + " " + each.shape);
  }
  const std::vector<std::string> expected{"key_cache_0 Float [1, 2, 24, 4]",
                                          "key_cache_1 Float [1, 2, 24, 4]",
                                          "length_0 Long []",
                                          "length_1 Long []",
                                          "value_cache_0 Float [1, 2, 24, 4]",
                                          "value_cache_1 Float [1, 2, 24, 4]"};
  std::sort(state.begin(), state.end());
  EXPECT_EQ(state, expected);
  EXPECT_TRUE(
      exported_signature(testing::example_file("tiny.pt2")).state.empty());
}

TEST(ExportedStateTest, ManyTokensInOneCallNeedNoRowsInTheOutput) {
  const std::string path = testing::example_file("prefilled.pt2");
  EXPECT_THROW((void)load_exported(path), c10::ValueError);
  ExportedModel model =
      load_exported(path, ExportedOptions().concatenates(false));
  model.layers->eval();
  model.use_buffer_sets({0});
  const c10::NoGradGuard no_grad;
  Sequence a(0);
  const int64_t count = a.tokens.size(0) - 1;
  const auto call = [&](int64_t begin, int64_t end) {
    return model.layers->forward(
        Tensors{a.tokens.slice(0, begin, end).unsqueeze(0),
                at::arange(begin, end, at::kLong)})[0];
  };
  EXPECT_TRUE(
      at::allclose(call(0, count), a.logits.slice(0, 0, count), 1e-4, 1e-5));
  EXPECT_TRUE(
      at::allclose(call(count, count + 1)[0], a.logits[count], 1e-4, 1e-5));
}

TEST(ExportedStateTest, TheSignatureHasTheLargestSizes) {
  const ExportedSignature window =
      exported_signature(testing::example_file("window.pt2"));
  EXPECT_EQ(window.inputs[0].largest, (std::vector<int64_t>{4096, 24}));
  EXPECT_EQ(window.outputs[0].largest, (std::vector<int64_t>{4096, 24, 13}));
}

}  // namespace
}  // namespace gpipe
