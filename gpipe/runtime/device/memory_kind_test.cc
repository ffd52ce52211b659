#include "gpipe/runtime/device/memory_kind.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace gpipe::internal {
namespace {

TEST(MemoryKind, ScopesNestAndAreOfOneThread) {
  EXPECT_EQ(MemoryKindScope::current(), MemoryKind::kActivation);
  {
    const MemoryKindScope outer(MemoryKind::kParameter);
    {
      const MemoryKindScope inner(MemoryKind::kWorkspace);
      EXPECT_EQ(MemoryKindScope::current(), MemoryKind::kWorkspace);
      std::thread([] {
        EXPECT_EQ(MemoryKindScope::current(), MemoryKind::kActivation);
      }).join();
    }
    EXPECT_EQ(MemoryKindScope::current(), MemoryKind::kParameter);
  }
  EXPECT_EQ(MemoryKindScope::current(), MemoryKind::kActivation);
}

std::vector<std::pair<at::Tensor, MemoryKind>> labels;

TEST(MemoryKind, LabelsReachTheFunctionForDefinedTensors) {
  const at::Tensor tensor = at::zeros({2});
  label_memory(tensor, MemoryKind::kGradient);  // no function yet
  on_label([](const at::Tensor& labelled, MemoryKind kind) {
    labels.emplace_back(labelled, kind);
  });
  label_memory(tensor, MemoryKind::kBoundary);
  label_memory(at::Tensor(), MemoryKind::kBoundary);
  on_label(nullptr);
  label_memory(tensor, MemoryKind::kGradient);
  ASSERT_EQ(labels.size(), 1u);
  EXPECT_TRUE(labels[0].first.is_same(tensor));
  EXPECT_EQ(labels[0].second, MemoryKind::kBoundary);
  labels.clear();
}

}  // namespace
}  // namespace gpipe::internal
