// Returns errors as text, so that a test asserts type and message in one line.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <exception>
#include <string>
#include <typeinfo>
#include <utility>

namespace gpipe::testing {

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

}  // namespace gpipe::testing
