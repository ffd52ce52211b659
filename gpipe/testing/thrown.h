// The text of an exception. No LibTorch.
#pragma once

#include <string>

namespace gpipe::testing {

// Returns the text of the `Error` that `run` throws, without a backtrace, or
// `none`. Other exceptions pass through.
template <typename Error, typename Run>
std::string thrown(const Run& run, std::string none = "no error") {
  try {
    run();
  } catch (const Error& error) {
    if constexpr (requires { error.what_without_backtrace(); }) {
      return error.what_without_backtrace();
    } else {
      return error.what();
    }
  }
  return none;
}

}  // namespace gpipe::testing
