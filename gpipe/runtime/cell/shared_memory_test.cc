#include "gpipe/runtime/cell/shared_memory.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::StartsWith;

std::vector<Activation> activations(const std::vector<Tensor>& tensors,
                                    bool shared = false) {
  std::vector<Activation> all;
  for (const Tensor& each : tensors) all.push_back({each, false, shared});
  return all;
}

std::vector<bool> marks(const std::vector<Activation>& all) {
  std::vector<bool> marks;
  for (const Activation& each : all) marks.push_back(each.shared);
  return marks;
}

std::vector<bool> marked(const std::vector<Tensor>& tensors) {
  auto all = activations(tensors);
  mark_shared(all);
  return marks(all);
}

TEST(MarkShared, MarksBothOfTwoThatOverlap) {
  const Tensor x = at::arange(6);
  EXPECT_THAT(marked({x, at::arange(6), x}), ElementsAre(true, false, true));
  EXPECT_THAT(marked({x, x.view({2, 3})}), ElementsAre(true, true));
  EXPECT_THAT(marked({x.narrow(0, 0, 4), x.narrow(0, 3, 3)}),
              ElementsAre(true, true));
  // Whether these overlap is not known.
  EXPECT_THAT(marked({x.slice(0, 0, 6, 2), x.slice(0, 1, 6, 2)}),
              ElementsAre(true, true));
}

TEST(MarkShared, LeavesDisjointAndUndefinedOnesAlone) {
  const Tensor x = at::arange(6);
  EXPECT_THAT(marked({x.narrow(0, 0, 3), x.narrow(0, 3, 3)}),
              ElementsAre(false, false));
  EXPECT_THAT(marked({Tensor(), Tensor(), x}),
              ElementsAre(false, false, false));
}

TEST(SharedInput, DetectsAChangeOfASharedTensorOnly) {
  const Tensor shared = at::zeros({2}), alone = at::zeros({2});
  auto all = activations({shared}, true);
  all.push_back({alone, false, false});
  all.push_back({Tensor(), false, true});
  const SharedInput input(all);
  alone.add_(1);
  input.check_unchanged(3);
  shared.view({1, 2}).add_(1);
  EXPECT_THAT(
      error_of([&] { input.check_unchanged(3); }),
      StartsWith("c10::Error: a layer of partition 3 changes a tensor in place "
                 "that an earlier partition has given to more than one layer"));
}

TEST(SharedInput, MarksOutputsOfItsMemory) {
  const Tensor shared = at::zeros({4}), alone = at::zeros({4});
  auto all = activations({shared}, true);
  all.push_back({alone, false, false});
  const SharedInput input(all);
  auto outputs = activations(
      {alone, shared.narrow(0, 1, 2), Tensor(), at::zeros({4}), shared});
  input.mark(outputs);
  EXPECT_THAT(marks(outputs), ElementsAre(false, true, false, false, true));
}

TEST(SharedInput, DoesNotKeepTensorsAlive) {
  Tensor shared = at::zeros({4});
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory =
      shared.storage().getWeakStorageImpl();
  const SharedInput input(activations({shared}, true));
  shared.reset();
  EXPECT_TRUE(memory.expired());
  auto outputs = activations({at::zeros({4})});
  input.mark(outputs);
  EXPECT_THAT(marks(outputs), ElementsAre(false));
  input.check_unchanged(0);
}

}  // namespace
}  // namespace gpipe::internal
