#include "models/amoebanet.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/pimpl.h>

#include <ostream>
#include <string>

#include "models/layers/amoebanet_cell.h"
#include "models/layers/image_layers.h"

namespace gpipe::models {
namespace {

using amoebanet::Cell;
using amoebanet::States;
using torch::Tensor;
using torch::nn::AvgPool2d;
using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Flatten;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr char kName[] = "amoebanetd";
constexpr int64_t kImageChannels = 3;
// The stem halves the size once, cells halve it four times.
constexpr int64_t kReduction = 32;
constexpr int64_t kPoolSize = 7;

// Returns whether the stem, which rounds up, leaves a size that can be halved
// further.
bool is_allowed(int64_t size) {
  return size >= kReduction - 1 && (size + 1) % kReduction <= 1;
}

class StemImpl : public torch::nn::Cloneable<StemImpl> {
 public:
  explicit StemImpl(int64_t channels) : channels_(channels) { reset(); }

  Tensor forward(Tensor x) {
    check_images(kName, x, kImageChannels);
    TORCH_CHECK_VALUE(is_allowed(x.size(2)) && is_allowed(x.size(3)), kName,
                      ": height and width of the input must be multiples of ",
                      kReduction, ", or one less, but its shape is ",
                      x.sizes());
    return bn_->forward(conv_->forward(at::relu(x)));
  }

  void reset() override {
    conv_ = register_module("conv",
                            Conv2d(Conv2dOptions(kImageChannels, channels_, 3)
                                       .stride(2)
                                       .padding(1)
                                       .bias(false)));
    bn_ = register_module("bn", BatchNorm2d(channels_));
  }
  void pretty_print(std::ostream& stream) const override {
    stream << "gpipe::models::amoebanet::Stem";
  }

 private:
  int64_t channels_;
  Conv2d conv_{nullptr};
  BatchNorm2d bn_{nullptr};
};
TORCH_MODULE(Stem);

class ClassifyImpl : public torch::nn::Cloneable<ClassifyImpl> {
 public:
  ClassifyImpl(int64_t channels, int64_t num_classes)
      : channels_(channels), num_classes_(num_classes) {
    reset();
  }

  Tensor forward(States states) {
    Tensor x = std::get<0>(states);
    x = fits(x.size(2)) && fits(x.size(3)) ? pool_->forward(x)
                                           : at::adaptive_avg_pool2d(x, {1, 1});
    return fc_->forward(flat_->forward(x));
  }

  void reset() override {
    pool_ = register_module("pool", AvgPool2d(kPoolSize));
    flat_ = register_module("flat", Flatten());
    fc_ = register_module("fc", Linear(channels_, num_classes_));
  }
  void pretty_print(std::ostream& stream) const override {
    stream << "gpipe::models::amoebanet::Classify";
  }

 private:
  // Returns whether the pool gives a single value.
  static bool fits(int64_t size) { return size / kPoolSize == 1; }

  int64_t channels_, num_classes_;
  AvgPool2d pool_{nullptr};
  Flatten flat_{nullptr};
  Linear fc_{nullptr};
};
TORCH_MODULE(Classify);

// Appends the layers in order and keeps track of channels.
class Builder {
 public:
  explicit Builder(const AmoebaNetOptions& options) : options_(options) {
    cell_.channels = options.num_filters() / 4;
    cell_.previous_channels = cell_.older_channels = cell_.channels;
    cell_.first = true;
    cell_.true_max_pool = options.true_max_pool();
    model_->push_back("stem1", Stem(cell_.channels));
  }

  void reduction_cell(const std::string& name) {
    cell_.channels *= 2;
    cell(name, /*reduction=*/true);
  }

  void normal_cells(const std::string& prefix) {
    for (int64_t k = 1; k <= options_.num_layers() / 3; ++k) {
      cell(prefix + std::to_string(k), /*reduction=*/false);
    }
  }

  Sequential classify() {
    model_->push_back(
        "classify", Classify(cell_.previous_channels, options_.num_classes()));
    return model_;
  }

 private:
  void cell(const std::string& name, bool reduction) {
    cell_.after_reduction = cell_.reduction;
    cell_.reduction = reduction;
    append_cell(model_, name, cell_);
    cell_.older_channels = cell_.previous_channels;
    cell_.previous_channels = output_channels(cell_);
    cell_.first = false;
  }

  AmoebaNetOptions options_;
  Sequential model_;
  Cell cell_;  // the last cell, or the known part of the next
};

void check(const AmoebaNetOptions& options) {
  TORCH_CHECK_VALUE(options.num_classes() >= 1, kName,
                    ": num_classes must be at least 1, but is ",
                    options.num_classes());
  TORCH_CHECK_VALUE(options.num_layers() >= 3 && options.num_layers() % 3 == 0,
                    kName,
                    ": num_layers must be a multiple of 3, at least 3, but is ",
                    options.num_layers());
  TORCH_CHECK_VALUE(
      options.num_filters() >= 8 && options.num_filters() % 8 == 0, kName,
      ": num_filters must be a multiple of 8, at least 8, but is ",
      options.num_filters());
}

}  // namespace

Sequential amoebanetd(const AmoebaNetOptions& options) {
  check(options);
  Builder builder(options);
  builder.reduction_cell("stem2");
  builder.reduction_cell("stem3");
  builder.normal_cells("cell1_normal");
  builder.reduction_cell("cell2_reduction");
  builder.normal_cells("cell3_normal");
  builder.reduction_cell("cell4_reduction");
  builder.normal_cells("cell5_normal");
  return builder.classify();
}

Sequential amoebanetd(int64_t num_classes, int64_t num_layers,
                      int64_t num_filters) {
  return amoebanetd(AmoebaNetOptions()
                        .num_classes(num_classes)
                        .num_layers(num_layers)
                        .num_filters(num_filters));
}

}  // namespace gpipe::models
