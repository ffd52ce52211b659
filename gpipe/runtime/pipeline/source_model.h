// The Sequential that a pipeline was made of.
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <memory>

namespace gpipe::internal {

// A Sequential, as it was when a pipeline took its layers. A pipeline does not
// see layers that are added to the Sequential later. Holds no layer.
//
// Threads: as for the Sequential, check() reads it.
class SourceModel {
 public:
  explicit SourceModel(const torch::nn::Sequential& model)
      : model_(model.ptr()), layers_(model->size()) {}

  // Throws c10::ValueError if the Sequential has another number of layers now.
  void check() const {
    const auto model = model_.lock();
    TORCH_CHECK_VALUE(!model || model->size() == layers_, "the Sequential has ",
                      model->size(), " layers now, but it had ", layers_,
                      " when the pipeline was made of it, and the pipeline "
                      "runs these; make the pipeline after the last "
                      "push_back()");
  }

 private:
  std::weak_ptr<torch::nn::SequentialImpl> model_;
  std::size_t layers_;
};

}  // namespace gpipe::internal
