// The skip tensors of one cell while its layers run.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "gpipe/runtime/cell/partition.h"
#include "gpipe/skip/tracker.h"

namespace gpipe::internal {

// Holds the skip tensors that earlier partitions sent, those that stay in the
// partition, and those that go to later partitions. A tensor that was popped is
// held no longer.
class CellTracker : public SkipTracker {
 public:
  // `imported`: one per element of partition.imports; nullopt for "no tensor".
  CellTracker(const Partition& partition,
              std::vector<std::optional<at::Tensor>> imported);

  void save(const SkipKey& key, std::optional<at::Tensor> tensor) override;
  std::optional<at::Tensor> load(const SkipKey& key) override;

  // Returns the tensor that is stored under `key`; null if there is none, if
  // "no tensor" was stashed, or if it was popped.
  const at::Tensor* find(const SkipKey& key) const;

  // Checks the layer that has just run. Call after each layer. Throws
  // c10::Error if the layer has not stashed or popped all names that it
  // declares.
  void check_done(const LayerSkips& declared);

  // Moves out the skip tensors for later partitions, in the order of
  // partition.exports.
  std::vector<std::optional<at::Tensor>> take_exported();

 private:
  const Partition& partition_;
  std::map<SkipKey, std::optional<at::Tensor>> held_;
  std::set<SkipKey> stashed_, popped_;  // by the layer that runs now
};

}  // namespace gpipe::internal
