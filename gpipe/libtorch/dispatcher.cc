#include "gpipe/libtorch/dispatcher.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/op_registration.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace gpipe::internal {
namespace {

// What this copy of gpipe knows of a dispatch key.
struct Claim {
  bool is_ours = false;
  std::string other;           // the path of the other copy, if it is not ours
  std::set<std::string> done;  // what is registered
};

// Returns the path of the program or library that contains this code.
std::string own_path() {
  Dl_info info{};
  return ::dladdr(reinterpret_cast<void*>(&own_path), &info) && info.dli_fname
             ? info.dli_fname
             : "an unknown library";
}

// Returns the name of the first registration in LibTorch's error about a second
// one, or the whole error if its text is another one.
std::string previous_in(const std::string& error) {
  const std::string before = "Previous registration of TORCH_LIBRARY was ";
  const std::size_t at = error.find(before);
  if (at == error.npos) return error;
  const std::size_t from = at + before.size();
  return error.substr(from, error.find("; ", from) - from);
}

// LibTorch accepts one registration for each namespace of operators. It serves
// as a mark that all copies of gpipe see.
Claim claim_of(c10::DispatchKey key) {
  Claim claim;
  try {
    keep_registered(c10::Dispatcher::singleton().registerLibrary(
        std::string("gpipe_") + c10::toString(key), own_path()));
    claim.is_ours = true;
  } catch (const c10::Error& error) {
    claim.other = previous_in(error.what_without_backtrace());
  }
  return claim;
}

std::mutex& mutex() {
  static auto* const mutex = new std::mutex();
  return *mutex;
}

// Call it with the mutex.
Claim& known(c10::DispatchKey key) {
  static auto* const claims = new std::map<c10::DispatchKey, Claim>();
  const auto found = claims->find(key);
  if (found != claims->end()) return found->second;
  return claims->emplace(key, claim_of(key)).first->second;
}

}  // namespace

// The list is never destroyed and stays reachable for leak checkers. A static
// pointer per caller would not do: a compiler removes a pointer that is never
// read, and the handle would be reported as leaked.
void keep_registered(c10::RegistrationHandleRAII handle) {
  static auto* const handles = new std::vector<c10::RegistrationHandleRAII>();
  handles->push_back(std::move(handle));
}

bool claim(c10::DispatchKey key, const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex());
  Claim& claim = known(key);
  return claim.is_ours && claim.done.insert(what).second;
}

void check_claimed(c10::DispatchKey key) {
  const std::lock_guard<std::mutex> lock(mutex());
  const Claim& claim = known(key);
  TORCH_CHECK(
      claim.is_ours, "gpipe is in this process twice, in ", claim.other,
      " and in ", own_path(),
      ", and only the copy that was loaded first can be used; link "
      "gpipe into one shared library that all plugins use, or load the "
      "plugins with RTLD_GLOBAL if they were built with the same gpipe");
  TORCH_CHECK(!claim.done.empty(),
              "gpipe is used before main(), by a global variable of ",
              own_path(),
              ", and has not registered its operators yet; make the variable a "
              "static one of a function");
}

InterceptScope::InterceptScope(c10::DispatchKey key)
    : include_((check_claimed(key), key)) {}

void intercept(c10::DispatchKey key, const c10::OperatorHandle& op,
               c10::KernelFunction kernel, const std::string& owner) {
  // The first interceptor for a key makes all other operators fall through it.
  intercept_all(key, c10::KernelFunction::makeFallthrough(),
                "gpipe: other operators");
  if (!claim(key, c10::toString(op.operator_name()))) return;
  keep_registered(c10::Dispatcher::singleton().registerImpl(
      op.operator_name(), key, std::move(kernel),
      /*cpp_signature=*/std::nullopt, /*inferred_function_schema=*/nullptr,
      owner));
}

void intercept_all(c10::DispatchKey key, c10::KernelFunction kernel,
                   const std::string& owner) {
  if (!claim(key, "all")) return;
  keep_registered(c10::Dispatcher::singleton().registerFallback(
      key, std::move(kernel), owner));
}

void run_intercepted(c10::DispatchKey key, const c10::OperatorHandle& op,
                     c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
}

void run_uncovered(c10::DispatchKey key, const c10::OperatorHandle& op,
                   torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard uncovered(key);
  op.callBoxed(stack);
}

bool returns_tensors(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& each) {
    const auto kind = each.type()->kind();
    return kind == c10::TypeKind::TensorType || kind == c10::TypeKind::ListType;
  });
}

c10::IValue with_tensors(
    const c10::IValue& value,
    c10::function_ref<at::Tensor(const at::Tensor&)> replace) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? replace(tensor) : tensor;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) {
      list.push_back(each.defined() ? replace(each) : each);
    }
    return list;
  }
  if (value.isList() && value.toListRef().size() > 0) {
    c10::impl::GenericList list(value.toList().elementType());
    for (const c10::IValue& each : value.toListRef()) {
      list.push_back(with_tensors(each, replace));
    }
    return list;
  }
  return value;
}

void for_each_tensor(const c10::IValue& value,
                     c10::function_ref<void(const at::Tensor&)> visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) {
      // All elements of such a list are numbers.
      if (each.isInt() || each.isDouble() || each.isBool()) return;
      for_each_tensor(each, visit);
    }
  }
}

}  // namespace gpipe::internal
