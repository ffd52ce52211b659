// torchvision's operators with simple kernels, whose gradients are known.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <array>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

namespace gpipe {
namespace {

using torch::jit::Stack;

at::Tensor roi_align(const at::Tensor& input, const at::Tensor& /*rois*/,
                     double scale, int64_t /*height*/, int64_t /*width*/,
                     int64_t /*sampling_ratio*/, bool /*aligned*/) {
  return input * scale;
}

// Called in the backward of roi_align, if a test sets it.
std::function<void()> in_backward;

// Uses each argument that the forward does not have.
at::Tensor roi_align_backward(const at::Tensor& grad, const at::Tensor& rois,
                              double scale, int64_t, int64_t, int64_t batch,
                              int64_t channels, int64_t height, int64_t width,
                              int64_t sampling_ratio, bool /*aligned*/) {
  EXPECT_EQ(rois.numel(), 5);
  if (in_backward) in_backward();
  return (grad * scale * static_cast<double>(sampling_ratio))
      .view({batch, channels, height, width});
}

// The second result is an index, as in torchvision.
std::tuple<at::Tensor, at::Tensor> roi_pool(const at::Tensor& input,
                                            const at::Tensor& /*rois*/,
                                            double scale, int64_t, int64_t) {
  return {input * scale, at::arange(input.numel()).view_as(input)};
}

at::Tensor roi_pool_backward(const at::Tensor& grad, const at::Tensor&,
                             const at::Tensor& argmax, double, int64_t, int64_t,
                             int64_t, int64_t, int64_t, int64_t) {
  return grad * argmax;
}

at::Tensor deform_conv2d(const at::Tensor& input, const at::Tensor& weight,
                         const at::Tensor& offset, const at::Tensor& mask,
                         const at::Tensor& bias, int64_t, int64_t, int64_t,
                         int64_t, int64_t, int64_t, int64_t, int64_t, bool) {
  return input + weight + offset + mask + bias;
}

using FiveTensors =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

FiveTensors deform_conv2d_backward(const at::Tensor& grad,
                                   const at::Tensor& input,
                                   const at::Tensor& weight, const at::Tensor&,
                                   const at::Tensor&, const at::Tensor&,
                                   int64_t stride, int64_t, int64_t, int64_t,
                                   int64_t, int64_t, int64_t, int64_t, bool) {
  return {grad * weight, grad * input, grad * 3, grad * 4,
          grad * static_cast<double>(stride)};
}

// The schemas are those of torchvision, with int for SymInt.
TORCH_LIBRARY(torchvision, library) {
  library.def(
      "roi_align(Tensor input, Tensor rois, float spatial_scale, int "
      "pooled_height, int pooled_width, int sampling_ratio, bool aligned) -> "
      "Tensor");
  library.def(
      "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, int "
      "pooled_height, int pooled_width, int batch_size, int channels, int "
      "height, int width, int sampling_ratio, bool aligned) -> Tensor");
  library.def(
      "roi_pool(Tensor input, Tensor rois, float spatial_scale, int "
      "pooled_height, int pooled_width) -> (Tensor, Tensor)");
  library.def(
      "_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float "
      "spatial_scale, int pooled_height, int pooled_width, int batch_size, int "
      "channels, int height, int width) -> Tensor");
  library.def(
      "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, "
      "Tensor bias, int stride_h, int stride_w, int pad_h, int pad_w, int "
      "dilation_h, int dilation_w, int groups, int offset_groups, bool "
      "use_mask) -> Tensor");
  library.def(
      "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, "
      "Tensor offset, Tensor mask, Tensor bias, int stride_h, int stride_w, "
      "int pad_h, int pad_w, int dilation_h, int dilation_w, int groups, int "
      "offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, "
      "Tensor)");
}

TORCH_LIBRARY_IMPL(torchvision, CPU, library) {
  library.impl("roi_align", roi_align);
  library.impl("_roi_align_backward", roi_align_backward);
  library.impl("roi_pool", roi_pool);
  library.impl("_roi_pool_backward", roi_pool_backward);
  library.impl("deform_conv2d", deform_conv2d);
  library.impl("_deform_conv2d_backward", deform_conv2d_backward);
}

// Returns the first result of an operator.
at::Tensor call(const std::string& name, Stack stack) {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow(("torchvision::" + name).c_str(), "")
      .callBoxed(stack);
  return stack.at(0).toTensor();
}

at::Tensor leaf(at::IntArrayRef sizes, double value) {
  return at::full(sizes, value).set_requires_grad(true);
}

TEST(TorchvisionOperatorsTest, ABackwardGetsArgumentsAndSizes) {
  const at::Tensor input = leaf({2, 1, 2, 2}, 7);
  const at::Tensor output =
      call("roi_align", {input, at::zeros({1, 5}), 0.5, 3, 3, 4, false});
  EXPECT_TRUE(at::equal(output, at::full({2, 1, 2, 2}, 3.5)));
  output.sum().backward();
  EXPECT_TRUE(at::equal(input.grad(), at::full({2, 1, 2, 2}, 2.0)));
}

TEST(TorchvisionOperatorsTest, ABackwardGetsTheSecondResult) {
  const at::Tensor input = leaf({1, 1, 2, 2}, 1);
  call("roi_pool", {input, at::zeros({1, 5}), 0.5, 2, 2}).sum().backward();
  EXPECT_TRUE(at::equal(input.grad().flatten(), at::arange(4, at::kFloat)));
}

TEST(TorchvisionOperatorsTest, EachTensorHasItsGradient) {
  const at::Tensor input = leaf({2}, 10), weight = leaf({2}, 20);
  const at::Tensor offset = leaf({2}, 0), bias = leaf({2}, 0);
  const at::Tensor mask = at::zeros({2});
  const auto output = [&] {
    return call("deform_conv2d", {input, weight, offset, mask, bias, 5, 1, 1, 1,
                                  1, 1, 1, 1, true});
  };
  output().sum().backward();
  const auto expect = [](const at::Tensor& tensor, double grad) {
    EXPECT_TRUE(at::equal(tensor.grad(), at::full({2}, grad)));
  };
  expect(input, 20);
  expect(weight, 10);
  expect(offset, 3);
  expect(bias, 5);
  EXPECT_FALSE(mask.grad().defined());

  const at::NoGradGuard no_grad;
  EXPECT_FALSE(output().requires_grad());
}

TEST(TorchvisionOperatorsTest, AGradientOfAGradientIsAnError) {
  const at::Tensor input = leaf({1, 1, 2, 2}, 1);
  const at::Tensor loss =
      call("roi_align", {input, at::zeros({1, 5}), 0.5, 3, 3, 4, false}).sum();
  EXPECT_THROW(torch::autograd::grad({loss}, {input}, {},
                                     /*retain_graph=*/std::nullopt,
                                     /*create_graph=*/true),
               c10::NotImplementedError);
}

// Returns whether a thread has locked the mutex of a node.
bool is_locked(torch::autograd::Node& node) {
  struct Access : torch::autograd::Node {
    static std::mutex& mutex_of(Node& node) { return node.*&Access::mutex_; }
  };
  bool locked = false;
  std::thread([&] {
    const std::unique_lock<std::mutex> lock(Access::mutex_of(node),
                                            std::try_to_lock);
    locked = !lock.owns_lock();
  }).join();
  return locked;
}

// Another thread may call backward on another part of the graph meanwhile.
TEST(TorchvisionOperatorsTest, ABackwardUsesAndReleasesItsTensorsUnderALock) {
  bool used = false, released = false;
  std::array<float, 5> numbers = {};
  const at::Tensor input = leaf({2, 1, 2, 2}, 7);
  torch::autograd::Node* node = nullptr;
  // The backward alone keeps these regions.
  const at::Tensor output = call(
      "roi_align", {input,
                    at::from_blob(numbers.data(), {1, 5},
                                  [&](void*) { released = is_locked(*node); }),
                    0.5, 3, 3, 4, false});
  node = output.grad_fn().get();
  in_backward = [&] { used = is_locked(*node); };
  output.sum().backward();
  in_backward = nullptr;
  EXPECT_TRUE(used);
  EXPECT_TRUE(released);
}

}  // namespace
}  // namespace gpipe
