// Mixed precision: low-precision copies of parameters that the cells of a
// partition share.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "gpipe/libtorch/dispatcher.h"

namespace gpipe::internal {

// The copies of a partition's parameters, and of views of them, that autocast
// has made in one mini-batch. All micro-batches in flight use one copy.
// LibTorch's own cache would give several cells one graph, and it does not
// cache views, such as the transposed weight of LibTorch's Linear.
//
// Here only the memory is shared. Each use gets a tensor with a graph node of
// its own, which casts the gradient as LibTorch's does. So the gradients of
// several uses in a cell are added up in float32. A copy is freed with
// the last graph that needs it. It is made again if the parameter has been
// changed in place, or if a layer has changed the copy.
//
// Threads: used by the caller before a pass, and by the partition's worker
// while it runs.
class ParameterCasts {
 public:
  // Begins a mini-batch. No copy of an earlier one is used again.
  void begin(const std::vector<at::Tensor>& parameters);

  // Returns the memory of all copies that live.
  std::vector<c10::Storage> hold() const;

  // For the interceptor of casts. knows() returns whether `tensor` is a
  // parameter or a view of one. cast() returns the tensor in `dtype`, with a
  // graph if gradients are enabled. `make`: casts without a graph.
  bool knows(const at::Tensor& tensor) const;
  template <typename Make>
  at::Tensor cast(const at::Tensor& tensor, at::ScalarType dtype, Make make);

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Copy {
    // What was copied, and to which type. `source_keys` tells a view whose
    // values LibTorch negates when they are read, such as w.conj().imag().
    std::vector<int64_t> sizes, strides;
    int64_t offset;
    c10::DispatchKeySet source_keys;
    at::ScalarType source_dtype;
    uint32_t version;
    at::ScalarType dtype;
    // The copy. Its tensors have one version counter, as tensors that share
    // memory should.
    WeakStorage memory;
    std::vector<int64_t> copy_strides;
    c10::DispatchKeySet keys;
    c10::VariableVersion counter;
    uint32_t copy_version;
  };
  struct Source {
    WeakStorage memory;  // keeps its address from being used again
    std::vector<Copy> copies;
  };

  // Returns a tensor without graph; undefined if the copy has been freed.
  static at::Tensor alias_of(const Copy& copy);

  std::unordered_map<const c10::StorageImpl*, Source> sources_;
};

// While in scope, casts that autocast makes on this thread come from `casts`,
// if autocast is enabled for `device` when the scope begins.
class CastScope {
 public:
  CastScope(ParameterCasts& casts, const c10::Device& device);
  ~CastScope();
  CastScope(const CastScope&) = delete;
  CastScope& operator=(const CastScope&) = delete;

 private:
  ParameterCasts* const outer_;
  InterceptScope intercept_{kCellKey};
};

}  // namespace gpipe::internal
