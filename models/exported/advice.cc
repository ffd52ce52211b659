#include "models/exported/advice.h"

#include <cstddef>
#include <string_view>

#include "models/exported/operator_schema.h"
#include "models/exported/region_reader.h"

namespace gpipe::exported {
namespace {

constexpr std::string_view kTransforms = "torch._functorch.predispatch.";

// The first names of higher-order operators, and what to do about them.
struct Advice {
  std::string_view name, text;
};

constexpr Advice kHigherOrder[] = {
    {"associative_scan",
     "use cumsum, cumprod or logcumsumexp, or write a Python loop, which the "
     "export unrolls (transformers: use_associative_scan=False)"},
    {"flex_attention",
     "use scaled_dot_product_attention (transformers: "
     "attn_implementation=\"sdpa\")"},
    {"triton_kernel_wrapper", "use an implementation without Triton"},
    {"", "export the model without it"},
};

std::string advice_on_higher_order(std::string_view name) {
  std::string text = "is a higher-order operator, which is not supported; ";
  for (const Advice& each : kHigherOrder) {
    if (name.starts_with(each.name)) return text.append(each.text);
  }
  return text;
}

}  // namespace

bool is_transform(const std::string& target) {
  return target.starts_with(kTransforms);
}

std::string advice_on(const std::string& target) {
  if (is_transform(target)) {
    return "is a step of torch.vmap or torch.func.jvp, which only Python can "
           "run; write the function for all rows at once";
  }
  if (is_higher_order(target)) {
    return advice_on_higher_order(target.substr(target.rfind('.') + 1));
  }
  if (!is_operator(target)) return "is no operation that gpipe knows";
  return "is an operator that LibTorch does not have; load the library that "
         "registers it (programs: --operators=LIBRARY.so), or export the model "
         "without it";
}

}  // namespace gpipe::exported
