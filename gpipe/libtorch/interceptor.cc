#include "gpipe/libtorch/interceptor.h"

#include <ATen/core/op_registration/op_registration.h>

#include <utility>

#include "gpipe/libtorch/registration.h"

namespace gpipe::internal {
namespace {

c10::DispatchKey key_of(Interceptor kind) {
  return kind == Interceptor::kCell ? kCellKey : kMetaKey;
}

// Makes all other operators fall through the key. Called with the first
// interceptor of each kind.
void let_others_pass(Interceptor kind) {
  intercept_all(kind, c10::KernelFunction::makeFallthrough(),
                "gpipe: other operators");
}

}  // namespace

InterceptScope::InterceptScope(Interceptor kind)
    : include_((check_interceptors(kind), key_of(kind))) {}

void check_interceptors(Interceptor kind) { check_claimed(key_of(kind)); }

void intercept(Interceptor kind, const c10::OperatorHandle& op,
               c10::KernelFunction kernel, const std::string& owner) {
  let_others_pass(kind);
  if (!claim(key_of(kind), c10::toString(op.operator_name()))) return;
  keep_registered(c10::Dispatcher::singleton().registerImpl(
      op.operator_name(), key_of(kind), std::move(kernel),
      /*cpp_signature=*/std::nullopt, /*inferred_function_schema=*/nullptr,
      owner));
}

void intercept_all(Interceptor kind, c10::KernelFunction kernel,
                   const std::string& owner) {
  if (!claim(key_of(kind), "all")) return;
  keep_registered(c10::Dispatcher::singleton().registerFallback(
      key_of(kind), std::move(kernel), owner));
}

void run_intercepted(Interceptor kind, const c10::OperatorHandle& op,
                     c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key_of(kind)),
      stack);
}

void run_uncovered(Interceptor kind, const c10::OperatorHandle& op,
                   torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard uncovered(key_of(kind));
  op.callBoxed(stack);
}

}  // namespace gpipe::internal
