// Steps whose copies have no streams of their own.
#pragma once

#include <cstring>

#include "gpipe/runtime/device/ordering.h"

namespace gpipe::benchmarks {

// A scope in which copies run on the streams that compute. Only one may exist
// at a time, while no pipeline is running.
class WithoutCopyStreams {
 public:
  WithoutCopyStreams() { internal::set_leave_out(is_scope_of_a_copy); }
  ~WithoutCopyStreams() { internal::set_leave_out(nullptr); }
  WithoutCopyStreams(const WithoutCopyStreams&) = delete;
  WithoutCopyStreams& operator=(const WithoutCopyStreams&) = delete;

 private:
  static bool is_scope_of_a_copy(internal::Ordering ordering,
                                 const internal::Site& site) {
    return ordering == internal::Ordering::kScope &&
           std::strstr(site.file, "transport.cc") != nullptr;
  }
};

}  // namespace gpipe::benchmarks
