#include "gpipe/dispatch/registration.h"

#include <utility>
#include <vector>

namespace gpipe::internal {

// The list is never destroyed and stays reachable for leak checkers. A static
// pointer per caller would not do: a compiler removes a pointer that is never
// read, and the handle would be reported as leaked.
void keep_registered(c10::RegistrationHandleRAII handle) {
  static auto* const handles = new std::vector<c10::RegistrationHandleRAII>();
  handles->push_back(std::move(handle));
}

}  // namespace gpipe::internal
