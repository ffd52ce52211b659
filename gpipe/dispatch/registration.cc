#include "gpipe/dispatch/registration.h"

#include <utility>
#include <vector>

namespace gpipe {

// In one list that is never destroyed and where a leak checker finds them: what
// a pointer of each user's would lead to is lost, since a compiler drops a
// pointer that nobody reads.
void keep_registered(c10::RegistrationHandleRAII handle) {
  static auto* const handles = new std::vector<c10::RegistrationHandleRAII>();
  handles->push_back(std::move(handle));
}

}  // namespace gpipe
