#include "gpipe/runtime/cell/cell_tracker.h"

#include <c10/util/Exception.h>

#include <utility>

#include "gpipe/runtime/cell/phase_scope.h"
#include "gpipe/runtime/device/fault_point.h"

namespace gpipe::internal {

CellTracker::CellTracker(const Partition& partition,
                         std::vector<std::optional<at::Tensor>> imported)
    : partition_(partition) {
  for (std::size_t k = 0; k < imported.size(); ++k) {
    held_.emplace(partition.imports[k].key, std::move(imported[k]));
  }
}

void CellTracker::save(const SkipKey& key, std::optional<at::Tensor> tensor) {
  fault_point("stash", partition_.index, microbatch_at_work());
  held_[key] = std::move(tensor);
  stashed_.insert(key);
}

std::optional<at::Tensor> CellTracker::load(const SkipKey& key) {
  fault_point("pop", partition_.index, microbatch_at_work());
  auto found = held_.find(key);
  if (found == held_.end()) throw_not_stashed(key);
  std::optional<at::Tensor> tensor = std::move(found->second);
  held_.erase(found);
  popped_.insert(key);
  return tensor;
}

const at::Tensor* CellTracker::find(const SkipKey& key) const {
  const auto found = held_.find(key);
  return found != held_.end() && found->second ? &*found->second : nullptr;
}

void CellTracker::check_done(const LayerSkips& declared) {
  for (const SkipKey& key : declared.stash) {
    TORCH_CHECK(stashed_.count(key), "'", key.name,
                "' must be stashed but have not");
  }
  for (const SkipKey& key : declared.pop) {
    TORCH_CHECK(popped_.count(key), "'", key.name,
                "' must be popped but have not");
  }
  stashed_.clear();
  popped_.clear();
}

std::vector<std::optional<at::Tensor>> CellTracker::take_exported() {
  std::vector<std::optional<at::Tensor>> exported;
  for (const SkipRoute& route : partition_.exports) {
    auto found = held_.find(route.key);
    exported.push_back(std::move(found->second));
    held_.erase(found);
  }
  return exported;
}

}  // namespace gpipe::internal
