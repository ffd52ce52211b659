// The skip tensors of one cell while its layers run.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "gpipe/runtime/partition.h"
#include "gpipe/skip/tracker.h"

namespace gpipe {

// Hands out the tensors that came from earlier partitions, keeps those that
// stay, and collects those that go to later partitions. A tensor that is
// handed out is held no longer.
class CellTracker : public SkipTracker {
 public:
  // `imported`: in the order of partition.imports, nullopt for none.
  CellTracker(const Partition& partition,
              std::vector<std::optional<at::Tensor>> imported);

  void save(const SkipKey& key, std::optional<at::Tensor> tensor) override;
  std::optional<at::Tensor> load(const SkipKey& key) override;

  // What the layer at work has stashed under this key; null if nothing, or if
  // it has been handed out.
  const at::Tensor* find(const SkipKey& key) const;

  // To be called after each layer: c10::Error if it has not stashed or popped
  // all that it declares.
  void check_done(const LayerSkips& declared);

  // In the order of partition.exports.
  std::vector<std::optional<at::Tensor>> take_exported();

 private:
  const Partition& partition_;
  std::map<SkipKey, std::optional<at::Tensor>> held_;
  std::set<SkipKey> stashed_, popped_;  // by the layer at work
};

}  // namespace gpipe
