#include "gpipe/runtime/pipeline/source_model.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using testing::error_of;
namespace nn = torch::nn;

TEST(SourceModel, RefusesASequentialWithMoreLayersThanBefore) {
  nn::Sequential model(nn::Linear(1, 1));
  const SourceModel source(model);
  source.check();
  model->push_back(nn::Linear(1, 1));
  EXPECT_EQ(error_of([&] { source.check(); }),
            "c10::ValueError: the Sequential has 2 layers now, but it had 1 "
            "when the pipeline was made of it, and the pipeline runs these; "
            "make the pipeline after the last push_back()");
  model = nullptr;
  source.check();
}

}  // namespace
}  // namespace gpipe::internal
