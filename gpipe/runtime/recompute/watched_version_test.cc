#include "gpipe/runtime/recompute/watched_version.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

namespace gpipe::internal {
namespace {

TEST(WatchedVersion, NoticesChangesInPlaceAlsoThroughViews) {
  at::Tensor tensor = at::ones({2});
  tensor.mul_(2);
  const WatchedVersion version(tensor);
  EXPECT_FALSE(version.is_changed());
  EXPECT_EQ(version.then(), tensor._version());
  tensor.mul_(2);
  tensor.view({1, 2}).add_(1);
  EXPECT_TRUE(version.is_changed());
  EXPECT_EQ(version.now(), version.then() + 2);
}

TEST(WatchedVersion, OfTensorsWithoutVersionsNeverChanges) {
  EXPECT_FALSE(WatchedVersion().is_changed());
  EXPECT_FALSE(WatchedVersion(at::Tensor()).is_changed());
  const c10::InferenceMode inference;
  at::Tensor tensor = at::ones({2});
  const WatchedVersion version(tensor);
  tensor.mul_(2);
  EXPECT_FALSE(version.is_changed());
}

TEST(WatchedVersion, DoesNotKeepTheMemory) {
  at::Tensor tensor = at::ones({2});
  const auto memory = tensor.storage().getWeakStorageImpl();
  const WatchedVersion version(tensor);
  tensor.reset();
  EXPECT_TRUE(memory.expired());
  EXPECT_FALSE(version.is_changed());
}

}  // namespace
}  // namespace gpipe::internal
