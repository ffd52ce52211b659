#include "models/unet.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/upsampling.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/skip.h"
#include "models/layers/image_layers.h"

namespace gpipe::models {
namespace {

using namespace torch::nn;  // NOLINT: the layers' names, and nothing else
using torch::Tensor;

constexpr char kName[] = "unet";
// Enough for images with a million pixels per side. The number of channels
// still fits an int64_t.
constexpr int64_t kMaxDepth = 20;

// The first layer, which checks the input of the model.
class FirstConvImpl : public Conv2dImpl {
 public:
  FirstConvImpl(const Conv2dOptions& options, int64_t depth)
      : Conv2dImpl(options), depth_(depth) {}

  Tensor forward(const Tensor& x) {
    check_images(kName, x, options.in_channels());
    const int64_t height = x.size(2) >> depth_, width = x.size(3) >> depth_;
    TORCH_CHECK_VALUE(height * width > 1, kName,
                      ": height and width of the input must be at least ",
                      int64_t{1} << depth_, ", and one of them at least ",
                      int64_t{2} << depth_, ", for a depth of ", depth_,
                      ", but its shape is ", x.sizes());
    return Conv2dImpl::forward(x);
  }

  // Conv2dImpl::clone() would return a Conv2dImpl.
  std::shared_ptr<Module> clone(const std::optional<torch::Device>& device =
                                    std::nullopt) const override {
    auto copy = std::make_shared<FirstConvImpl>(*this);
    static_cast<Conv2dImpl&>(*copy) =
        *std::dynamic_pointer_cast<Conv2dImpl>(Conv2dImpl::clone(device));
    return copy;
  }

 private:
  int64_t depth_;
};
TORCH_MODULE(FirstConv);

// The convolutions of one level. They are made before the layers around them,
// because the Python model does not draw their weights in the order of use.
using Convs = std::vector<AnyModule>;

class ConvMaker {
 public:
  ConvMaker(int64_t depth, int64_t num_convs)
      : depth_(depth), num_convs_(num_convs) {}

  // Makes the convolutions from `in` to `out` channels, with `middle` channels
  // between them.
  Convs make(int64_t in, int64_t middle, int64_t out) {
    Convs convs;
    for (int64_t k = 0; k < num_convs_; ++k) {
      convs.push_back(
          make_one(k == 0 ? in : middle, k == num_convs_ - 1 ? out : middle));
    }
    return convs;
  }

 private:
  AnyModule make_one(int64_t in, int64_t out) {
    const auto options = Conv2dOptions(in, out, 3).padding(1).bias(false);
    if (std::exchange(first_, false)) {
      return AnyModule(FirstConv(options, depth_));
    }
    return AnyModule(Conv2d(options));
  }

  int64_t depth_, num_convs_;
  bool first_ = true;
};

void append_convs(Sequential& model, const std::string& prefix,
                  const Convs& convs) {
  for (std::size_t k = 0; k < convs.size(); ++k) {
    const std::string unit = prefix + "_" + std::to_string(k) + "_";
    const auto channels =
        convs[k].ptr()->as<Conv2dImpl>()->options.out_channels();
    model->push_back(unit + "conv", convs[k]);
    model->push_back(unit + "dropout", Dropout2d(0.1));
    model->push_back(unit + "norm", InstanceNorm2d(channels));
    model->push_back(unit + "relu",
                     LeakyReLU(LeakyReLUOptions().negative_slope(0.01)));
  }
}

void append_encoder(Sequential& model, const std::string& prefix,
                    const Convs& convs, const Namespace& ns) {
  append_convs(model, prefix + "_encode", convs);
  model->push_back(prefix + "_skip", UNetStash(ns));
  model->push_back(prefix + "_down", MaxPool2d(MaxPool2dOptions(2).stride(2)));
}

void append_decoder(Sequential& model, const std::string& prefix,
                    const Convs& convs, const Namespace& ns) {
  model->push_back(prefix + "_up",
                   Upsample(UpsampleOptions()
                                .scale_factor(std::vector<double>{2, 2})
                                .mode(torch::kNearest)));
  model->push_back(prefix + "_skip", UNetPopCat(ns));
  append_convs(model, prefix + "_decode", convs);
}

void check_positive(const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value >= 1, kName, ": ", name,
                    " must be at least 1, but is ", value);
}

void check(int64_t depth, int64_t num_convs, int64_t base_channels,
           int64_t input_channels, int64_t output_channels) {
  TORCH_CHECK_VALUE(depth >= 1 && depth <= kMaxDepth, kName,
                    ": depth must be 1 to ", kMaxDepth, ", but is ", depth);
  check_positive("num_convs", num_convs);
  TORCH_CHECK_VALUE(base_channels >= 2 && base_channels % 2 == 0, kName,
                    ": base_channels must be even, at least 2, but is ",
                    base_channels);
  check_positive("input_channels", input_channels);
  check_positive("output_channels", output_channels);
}

}  // namespace

Sequential unet(int64_t depth, int64_t num_convs, int64_t base_channels,
                int64_t input_channels, int64_t output_channels) {
  check(depth, num_convs, base_channels, input_channels, output_channels);
  const auto width = [&](int64_t level) { return base_channels << level; };
  ConvMaker maker(depth, num_convs);
  std::vector<Convs> encoder, decoder;
  for (int64_t i = 0; i < depth; ++i) {
    encoder.push_back(
        maker.make(i == 0 ? input_channels : width(i - 1), width(i), width(i)));
  }
  const Convs bottleneck =
      maker.make(width(depth - 1), width(depth), width(depth - 1));
  // The input of a level is the output of the level below and the skip tensor.
  for (int64_t i = 0; i < depth; ++i) {
    decoder.push_back(maker.make(width(i + 1), width(i) / 2, width(i) / 2));
  }

  Sequential model;
  std::vector<Namespace> namespaces;
  for (int64_t i = 0; i < depth; ++i) namespaces.emplace_back();
  for (int64_t i = 0; i < depth; ++i) {
    append_encoder(model, "encoder_" + std::to_string(i), encoder[i],
                   namespaces[i]);
  }
  append_convs(model, "bottleneck_0", bottleneck);
  for (int64_t i = depth - 1; i >= 0; --i) {
    append_decoder(model, "decoder_" + std::to_string(depth - 1 - i),
                   decoder[i], namespaces[i]);
  }
  model->push_back(
      "segment",
      Conv2d(Conv2dOptions(width(0) / 2, output_channels, 1).bias(false)));
  return model;
}

}  // namespace gpipe::models
