// Errors as text, so that a test asserts type and message in one line, and
// waits for autograd's own threads.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/types.h>

#include <exception>
#include <string>
#include <typeinfo>
#include <utility>

namespace gpipe::testing {

// ---- Returns errors as text, so that a test asserts type and message in one
// line.

// Returns the exception of `run` as "c10::ValueError: the text", without a
// backtrace. Returns "" if there is none, and "not a std::exception" for other
// types.
template <typename Run>
std::string error_of(Run&& run) {
  try {
    std::forward<Run>(run)();
  } catch (const c10::Error& error) {
    return c10::demangle(typeid(error).name()) + ": " +
           error.what_without_backtrace();
  } catch (const std::exception& error) {
    return c10::demangle(typeid(error).name()) + ": " + error.what();
  } catch (...) {
    return "not a std::exception";
  }
  return "";
}

// ---- Waits for autograd's own threads. Each accelerator has one.

// Blocks until autograd's thread of `device` has released everything of earlier
// backwards. The thread first notifies the caller of a backward, and releases
// the last gradient later, but before its next work. So this function gives it
// work without any bytes.
inline void settle_engine(const torch::Device& device) {
  const auto nothing = torch::dtype(torch::kDouble).device(device);
  const torch::Tensor x = torch::empty({0}, nothing).requires_grad_();
  (x * 1).backward(torch::empty({0}, nothing));
}

}  // namespace gpipe::testing
