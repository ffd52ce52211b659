// The tensors that autograd keeps for the backward of a cell, on the device or
// on the host.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <unordered_set>
#include <vector>

#include "gpipe/libtorch/saved_tensors.h"
#include "gpipe/runtime/device/copier.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/recompute/buffers.h"

namespace gpipe::internal {

// The tensors that operators save while a SavedTensorScope with this object is
// on the thread. Of the buffers of a PastBuffers it keeps copies.
//
// LibTorch does not check the versions of tensors with hooks, so this class
// does: a backward throws c10::Error if a saved tensor was changed in place.
//
// Threads: used by the worker of the cell. The engine's threads read saved
// tensors while the worker waits for a backward.
class KeptTensors : public SavedTensorHooks {
 public:
  // `device`: where the cell computes; for offload() one with memory of its
  // own.
  explicit KeptTensors(c10::Device device) : device_(device) {}
  // Blocks the host while a copy back runs.
  ~KeptTensors() override;

  std::unique_ptr<torch::autograd::SavedVariableHooks> next() override;

  // Begins to copy the saved tensors to the host, and releases their memory on
  // the device. Each storage is copied once. These stay where they are:
  // - what others hold as well, such as parameters, buffers and inputs that
  //   other cells share. `leaving`: storages that others hold for a short time
  //   only, which do not stay;
  // - what is not on the device, and what has no storage.
  //
  // A backward throws c10::Error until reload(). `times`: see Copier; may
  // be null. Throws as Copier::to_host() does, and then has changed
  // nothing.
  void offload(Copier& copier,
               const std::unordered_set<const c10::StorageImpl*>& leaving,
               Copier::Times* times);

  // Begins to copy back. Does nothing if nothing was copied to the host. Throws
  // as Copier::from_host() does, and then has changed nothing.
  void reload(Copier& copier, Copier::Times* times);

  // Makes the current stream of the device wait for the copy back. Call before
  // the backward.
  void before_backward();

 private:
  struct Slot {
    // Shares memory and version counter with the saved tensor. It has no graph,
    // so the graph does not hold itself.
    at::Tensor tensor;
    WatchedVersion version;  // when saved; not used once it was copied
    enum class Place { kDevice, kHost, kDeviceAgain } place = Place::kDevice;
  };
  struct Hook;

  const c10::Device device_;
  std::vector<std::weak_ptr<Slot>> slots_;
  // The slots of each storage on the host, and the copies.
  std::vector<std::vector<std::weak_ptr<Slot>>> away_;
  Copier::OnHost on_host_;
  // The memory into which a copy back may run, until `ready_`.
  std::vector<c10::Storage> loading_;
  Event ready_;
};

}  // namespace gpipe::internal
