// A function that is computed again in backward, to save memory.
#pragma once

#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/checkpointed_call.h"
#include "gpipe/runtime/cell/value.h"

namespace gpipe {

namespace detail {

template <typename T>
inline constexpr bool kIsValue = std::is_same_v<T, at::Tensor> ||
                                 std::is_same_v<T, std::vector<at::Tensor>> ||
                                 internal::detail::is_tensor_tuple<T>::value;

template <typename Function>
std::shared_ptr<torch::nn::Module> module_of(const Function& function) {
  if constexpr (std::is_base_of_v<torch::detail::ModuleHolderIndicator,
                                  Function>) {
    return function.ptr();
  } else {
    return nullptr;
  }
}

template <typename Output, typename... Inputs, typename Function,
          std::size_t... I>
internal::CheckpointedFunction erase_types(std::shared_ptr<Function> function,
                                           std::index_sequence<I...>) {
  return [function = std::move(function)](std::vector<internal::Value> inputs) {
    return internal::Value::wrap<Output>(
        (*function)(std::move(inputs[I]).unwrap<Inputs>()...));
  };
}

}  // namespace detail

// Returns function(inputs...), and keeps only the inputs. When the backward
// needs a tensor that the function saved, it calls the function again:
//
//   torch::Tensor forward(torch::Tensor x) {
//     return gpipe::checkpoint([this](torch::Tensor h) { return mlp(h); }, x);
//   }
//
// `inputs`, and what the function returns: torch::Tensor,
// std::vector<torch::Tensor> or a std::tuple of 1 to 8 torch::Tensor, of any
// shapes and dtypes. Tensors may be undefined, except in outputs of layers of a
// pipeline, and need not require grad. The function is copied. It may be a
// module holder, such as torch::nn::Linear.
//
// The second call may come after the caller has returned. So a lambda must not
// capture local variables by reference: let it capture them by value, and
// members by `this`.
//
// Results and gradients have the same bits as without checkpoint():
//
// - The second call draws the same random numbers, from copies of the
//   generators. Other draws of the program are not disturbed. A function that
//   seeds a generator does that again. On CUDA the dropout of recurrent layers,
//   whose state cuDNN keeps, has a state from the CPU's generator instead.
// - It has the autocast state of the first call.
// - It does not change the running statistics of LibTorch's BatchNorm, or
//   num_batches_tracked. It leaves other buffers as they are if `function` is a
//   module holder, and in Recomputed (recomputed.h). Any other function must
//   not change buffers or variables in the second call; see is_recomputing()
//   (gpipe.h). If autograd saves a tensor that such a function changes in
//   place, the backward throws c10::Error.
// - Parameters that the function uses get their gradients once, and their hooks
//   are called, as in the plain model.
//
// The function may call checkpoint(), and may stash and pop skip tensors
// (skip.h). It may be called in a layer of a GPipe or of a DistributedPipeline,
// in cells with and without checkpointing. The graph of the outputs is that of
// the plain model. With a backward in two parts, the values stay until the
// weight part only for products of matrices and convolutions.
//
// The function may also call backward() or grad(). The second call does not add
// to gradients again. What such a backward saves, with create_graph, is kept.
//
// With retain_graph, a first backward keeps the recomputed tensors for the
// next. create_graph works outside of pipelines.
//
// The second call throws what the function throws; the exception reaches the
// caller of backward with its type if that derives from std::exception. In a
// pipeline last_failure() names the layer. Throws c10::Error
//
// - if the function changes an input in place;
// - in backward, if an input or a parameter has been changed in place since the
//   forward (also one that was captured, if it requires grad and is a leaf);
// - in backward, if the second call returns or saves other shapes or dtypes, or
//   another number of tensors.
//
// Without grad mode, or if an input has a tangent of forward-mode AD, the
// function is called directly. Threads: any. The second
// call runs on a thread of the autograd engine: on the CPU that is the thread
// that called backward, or the partition's worker. On an accelerator it is the
// one that all backwards of the device need, so a pipeline that the function
// calls throws c10::Error there while a backward of the pipeline runs.
//
// The program's backwards run in a subclass of LibTorch's autograd engine, so
// checkpoint() throws c10::Error in a Python process.
template <typename Function, typename... Inputs>
auto checkpoint(Function function, Inputs&&... inputs) {
  static_assert(
      (detail::kIsValue<std::decay_t<Inputs>> && ...),
      "the inputs of a checkpointed function must be torch::Tensor, "
      "std::vector<torch::Tensor> or std::tuple of 1 to 8 torch::Tensor; let "
      "the function capture other values");
  static_assert(std::is_invocable_v<Function&, std::decay_t<Inputs>...>,
                "the checkpointed function cannot be called with these inputs");
  using Output =
      std::decay_t<std::invoke_result_t<Function&, std::decay_t<Inputs>...>>;
  static_assert(detail::kIsValue<Output>,
                "a checkpointed function must return torch::Tensor, "
                "std::vector<torch::Tensor> or std::tuple of 1 to 8 "
                "torch::Tensor");
  std::shared_ptr<torch::nn::Module> module = detail::module_of(function);
  std::vector<internal::Value> values;
  values.reserve(sizeof...(Inputs));
  (values.push_back(internal::Value::wrap<std::decay_t<Inputs>>(
       std::forward<Inputs>(inputs))),
   ...);
  return internal::call_checkpointed(
             detail::erase_types<Output, std::decay_t<Inputs>...>(
                 std::make_shared<Function>(std::move(function)),
                 std::index_sequence_for<Inputs...>()),
             std::move(values), std::move(module))
      .template unwrap<Output>();
}

}  // namespace gpipe
