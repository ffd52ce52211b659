// A switch that makes copies between devices wait for computation, to measure
// what copy streams gain.
#pragma once

#include <string_view>

#include "gpipe/runtime/device/test_hooks.h"

namespace gpipe::benchmarks {

// A scope in which copies between devices run on the streams that compute,
// instead of on copy streams. Only one object may exist at a time. Make and
// destroy it while no pipeline is running.
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
           std::string_view(site.file).ends_with(
               "gpipe/runtime/device/copier.cc");
  }
};

}  // namespace gpipe::benchmarks
