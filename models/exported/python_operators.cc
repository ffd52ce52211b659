#include "models/exported/python_operators.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string>

namespace gpipe::exported {
namespace {

constexpr char kNamespace[] = "transformers";
constexpr char kName[] = "grouped_mm_fallback";

// Calls `use` with the number, the begin and the end of each group that has
// rows. `ends`: [groups], on any device.
template <typename Use>
void for_each_group(const at::Tensor& ends, const Use& use) {
  if (ends.is_meta()) return;
  const at::Tensor host = ends.to(at::kCPU, at::kLong).contiguous();
  const int64_t* const end = host.const_data_ptr<int64_t>();
  int64_t begin = 0;
  for (int64_t k = 0; k < host.numel(); ++k) {
    if (end[k] == begin) continue;
    use(k, begin, end[k]);
    begin = end[k];
  }
}

class GroupedProduct : public torch::autograd::Function<GroupedProduct> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& ends) {
    context->save_for_backward({input, weight, ends});
    const at::Tensor output =
        at::zeros({input.size(0), weight.size(2)}, input.options());
    for_each_group(ends, [&](int64_t k, int64_t begin, int64_t end) {
      at::Tensor rows = output.slice(0, begin, end);
      at::mm_out(rows, input.slice(0, begin, end), weight[k]);
    });
    return output;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &grad = grads[0];
    at::Tensor of_input, of_weight;
    if (context->needs_input_grad(0)) of_input = at::zeros_like(input);
    if (context->needs_input_grad(1)) of_weight = at::zeros_like(weight);
    for_each_group(saved[2], [&](int64_t k, int64_t begin, int64_t end) {
      const at::Tensor own = grad.slice(0, begin, end);
      if (of_input.defined()) {
        at::Tensor rows = of_input.slice(0, begin, end);
        at::mm_out(rows, own, weight[k].t());
      }
      if (of_weight.defined()) {
        at::Tensor matrix = of_weight[k];
        at::mm_out(matrix, input.slice(0, begin, end).t(), own);
      }
    });
    return {of_input, of_weight, at::Tensor()};
  }
};

at::Tensor grouped_product(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& ends) {
  return GroupedProduct::apply(input, weight, ends);
}

// Returns a library that lives until the process ends; null if the operators
// are known.
torch::Library* registered_operators() {
  const std::string name = std::string(kNamespace) + "::" + kName;
  if (c10::Dispatcher::singleton().findSchema({name, ""})) return nullptr;
  auto* const library = new torch::Library(torch::Library::FRAGMENT, kNamespace,
                                           std::nullopt, __FILE__, __LINE__);
  library->def(
      "grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) "
      "-> Tensor");
  library->impl(kName,
                torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd,
                                TORCH_FN(grouped_product)));
  return library;
}

}  // namespace

void register_python_operators() {
  [[maybe_unused]] static const torch::Library* const library =
      registered_operators();
}

}  // namespace gpipe::exported
