// Copies of buffers, which can be put back without a trace in autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <unordered_set>
#include <vector>

#include "gpipe/runtime/recompute/watched_version.h"

namespace gpipe::internal {

// The values that some buffers had at an earlier time. Each direction takes one
// operator per dtype and device, however many buffers there are: a model may
// have hundreds, and on an accelerator the launch of a small copy takes longer
// than the copy.
class BufferCopies {
 public:
  BufferCopies() = default;
  // Copies the present values of `buffers`.
  explicit BufferCopies(const std::vector<at::Tensor>& buffers);

  // Adds a buffer with a copy of its value.
  void add(const at::Tensor& buffer, at::Tensor value);

  // Copies the values back without raising versions: autograd may have saved
  // the buffers for a backward, and must not see a change.
  void put_back() const;

  bool empty() const { return groups_.empty(); }
  std::vector<at::Tensor> buffers() const;
  // Calls visit(buffer, value) for each buffer.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Group& group : groups_) {
      for (std::size_t k = 0; k < group.buffers.size(); ++k) {
        visit(group.buffers[k], group.values[k]);
      }
    }
  }

 private:
  // Buffers of one dtype and device, with their values.
  struct Group {
    std::vector<at::Tensor> buffers, values;
  };
  Group& group_of(const at::Tensor& buffer);

  std::vector<Group> groups_;
};

// Gives buffers their values of an earlier call of some layers, for another
// call of these layers while in scope. The values of now come back at the end,
// without raising versions.
//
// So the memory of the buffers changes below autograd, although operators of
// the call may save a buffer for their backward. Whatever hooks keep in the
// scope must therefore go through to_save().
//
// Threads: all calls on the thread of the constructor. Scopes are nested.
class PastBuffers {
 public:
  // Writes the values of `past`. Throws what a copy throws, and then has
  // restored the values of now where the device allows it.
  explicit PastBuffers(const BufferCopies& past);
  ~PastBuffers();
  PastBuffers(const PastBuffers&) = delete;
  PastBuffers& operator=(const PastBuffers&) = delete;

  // Writes the values of now, before the destructor does. Throws what a copy
  // throws.
  void restore();

  // Returns what a graph must keep of `tensor`: a copy if `tensor` shares
  // memory with a buffer of a scope on this thread, else `tensor`. If the
  // tensor changes in place between this call and the end of the scope, the
  // version of the copy rises at the end, so that the backward is refused as
  // that of the plain layers. Running statistics that no backward reads
  // (UnreadStatistics) are not copied.
  static at::Tensor to_save(const at::Tensor& tensor);

 private:
  struct Saved {
    WatchedVersion version;  // of the tensor
    at::Tensor copy;
  };
  void end() noexcept;

  const BufferCopies now_;
  std::unordered_set<const c10::StorageImpl*> storages_;
  std::vector<Saved> saved_;
  bool restored_ = false;
  PastBuffers* const outer_;
};

}  // namespace gpipe::internal
