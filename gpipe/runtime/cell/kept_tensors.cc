#include "gpipe/runtime/cell/kept_tensors.h"

#include <ATen/Functions.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <unordered_map>
#include <utility>

namespace gpipe::internal {
namespace {

// Returns whether the memory of `tensor` can be replaced by a copy of it.
bool can_leave(const at::Tensor& tensor, const c10::Device& device) {
  if (!tensor.defined()) return false;
  // The meta device may have no index, and its tensors may have one.
  const c10::Device where = tensor.device();
  const bool is_there =
      where == device || (where.is_meta() && device.is_meta());
  return is_there && tensor.layout() == at::kStrided && !tensor.is_nested() &&
         tensor.has_storage() && tensor.storage().nbytes() > 0;
}

void set_storage(at::Tensor& tensor, const c10::Storage& storage) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
}

}  // namespace

struct KeptTensors::Hook : torch::autograd::SavedVariableHooks {
  explicit Hook(KeptTensors& all) : all(all) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    slot = std::make_shared<Slot>();
    const at::Tensor kept = PastBuffers::to_save(tensor);
    slot->tensor = kept.tensor_data();
    slot->tensor.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
    slot->version = WatchedVersion(kept);
    all.slots_.push_back(slot);
  }

  at::Tensor call_unpack_hook() override {
    TORCH_CHECK(slot->place != Slot::Place::kHost,
                "a backward needs a tensor of sizes ", slot->tensor.sizes(),
                " that the schedule has copied to the host; a backward must "
                "come after the copy back (L) of its cell");
    TORCH_CHECK(
        slot->place == Slot::Place::kDeviceAgain || !slot->version.is_changed(),
        "a tensor of type ", slot->tensor.toString(), " and sizes ",
        slot->tensor.sizes(),
        " that a backward needs has been changed in place since the forward: "
        "it is at version ",
        slot->version.now(), ", but was at version ", slot->version.then(),
        "; change a copy instead");
    return slot->tensor;
  }

  KeptTensors& all;  // used by call_pack_hook() alone
  std::shared_ptr<Slot> slot;
};

KeptTensors::~KeptTensors() {
  if (loading_.empty()) return;
  try {
    ready_.wait(c10::Device(c10::kCPU));
  } catch (...) {
    // The device has failed, and the step ends with that error.
  }
}

std::unique_ptr<torch::autograd::SavedVariableHooks> KeptTensors::next() {
  return std::make_unique<Hook>(*this);
}

void KeptTensors::offload(
    Copier& copier, const std::unordered_set<const c10::StorageImpl*>& leaving,
    Copier::Times* times) {
  struct Group {
    c10::StorageImpl* storage;
    std::vector<std::shared_ptr<Slot>> slots;
  };
  std::vector<Group> groups;
  std::unordered_map<const c10::StorageImpl*, std::size_t> numbers;
  for (const std::weak_ptr<Slot>& each : slots_) {
    std::shared_ptr<Slot> slot = each.lock();
    if (!slot || !can_leave(slot->tensor, device_)) continue;
    auto* const storage = slot->tensor.storage().unsafeGetStorageImpl();
    const auto [number, is_new] = numbers.emplace(storage, groups.size());
    if (is_new) groups.push_back({storage, {}});
    groups[number->second].slots.push_back(std::move(slot));
  }

  std::vector<c10::Storage> storages;
  std::vector<Group> chosen;
  for (Group& group : groups) {
    const c10::Storage& storage = group.slots.front()->tensor.storage();
    const bool is_ours = storage.use_count() == group.slots.size();
    if (!is_ours && leaving.count(group.storage) == 0) continue;
    for (const auto& slot : group.slots) {
      // The copy would have the changed values. The backward reports this.
      if (slot->version.is_changed()) return;
    }
    storages.push_back(storage);
    chosen.push_back(std::move(group));
  }
  if (chosen.empty()) return;

  const c10::Storage nothing =
      at::empty({0}, at::TensorOptions().dtype(at::kByte).device(device_))
          .storage();
  std::vector<std::vector<std::weak_ptr<Slot>>> away(chosen.size());
  for (std::size_t k = 0; k < chosen.size(); ++k) {
    away[k].assign(chosen[k].slots.begin(), chosen[k].slots.end());
  }
  on_host_ = copier.to_host(std::move(storages), times);
  away_ = std::move(away);
  for (const Group& group : chosen) {
    for (const auto& slot : group.slots) {
      set_storage(slot->tensor, nothing);
      slot->place = Slot::Place::kHost;
    }
  }
}

void KeptTensors::reload(Copier& copier, Copier::Times* times) {
  if (away_.empty()) return;
  loading_ = copier.from_host(on_host_, &ready_, times);
  for (std::size_t k = 0; k < away_.size(); ++k) {
    for (const std::weak_ptr<Slot>& each : away_[k]) {
      const std::shared_ptr<Slot> slot = each.lock();
      if (!slot) continue;
      set_storage(slot->tensor, loading_[k]);
      slot->place = Slot::Place::kDeviceAgain;
    }
  }
  away_.clear();
}

void KeptTensors::before_backward() {
  if (loading_.empty()) return;
  ready_.wait(device_);
  loading_.clear();
  // The next copy into this buffer follows work of the current stream.
  on_host_ = Copier::OnHost();
}

}  // namespace gpipe::internal
