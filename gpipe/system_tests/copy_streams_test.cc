#include "benchmarks/harness/copy_streams.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <vector>

#include "gpipe/runtime/device/copier.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/device/test_hooks.h"
#include "gpipe/testing/devices.h"

namespace gpipe::benchmarks {
namespace {

using internal::Ordering;
using internal::Site;

// The places that have changed to another stream.
std::vector<Site>& scopes() {
  static std::vector<Site> scopes;
  return scopes;
}

bool note_scope(Ordering ordering, const Site& site) {
  if (ordering == Ordering::kScope) scopes().push_back(site);
  return false;
}

TEST(WithoutCopyStreamsTest, LeavesOutAllScopesOfACopyBetweenDevices) {
  const c10::Device from = testing::device(0), to = testing::device(1);
  const at::Tensor tensor = testing::ones({3});
  scopes().clear();
  internal::set_leave_out(note_scope);
  internal::Copier(to).to_device(tensor, internal::Event::record(from));
  internal::set_leave_out(nullptr);
  if (from == to) GTEST_SKIP() << "there is no copy on a single " << from;
  EXPECT_EQ(scopes().size(), 2);  // of the source and of the target

  const WithoutCopyStreams without;
  for (const Site& each : scopes()) {
    EXPECT_TRUE(internal::left_out(Ordering::kScope, each)) << each.file;
    EXPECT_FALSE(internal::left_out(Ordering::kWait, each)) << each.file;
  }
}

TEST(WithoutCopyStreamsTest, KeepsScopesOfOtherFiles) {
  const WithoutCopyStreams without;
  EXPECT_FALSE(internal::left_out(Ordering::kScope, Site::here()));
  EXPECT_FALSE(internal::left_out(Ordering::kScope, {"a/copy_log.cc", 1}));
}

}  // namespace
}  // namespace gpipe::benchmarks
