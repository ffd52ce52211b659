// What a second call must see again, and must do again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/runtime/operators/call_record.h"
#include "gpipe/runtime/recompute/buffers.h"

namespace gpipe::internal {

// The sizes and the dtype of a tensor, and whether it requires grad.
struct Outline {
  bool defined = false;
  c10::ScalarType type = c10::kFloat;
  c10::SmallVector<int64_t, 5> sizes;
  bool requires_grad = false;

  // `with_grad`: whether requires_grad counts. If not, it stays false.
  explicit Outline(const at::Tensor& tensor, bool with_grad = false);
  friend bool operator==(const Outline&, const Outline&) = default;
  // Returns a text such as "[2, 3] Float", "[2, 3] Float that requires grad" or
  // "undefined".
  std::string text() const;
};

// The first call of some layers or of a function, which is computed again in
// the backward: what it has seen (inputs, parameters, training modes, buffers,
// random numbers) and what it has returned. A cell and a checkpointed function
// each have one:
//
//   PastCall past("partition 3", "", &modules);
//   past.watch_input(...); past.watch_parameter(...);
//   ... the first call, with record() ...
//   past.first_call_done(outputs, ...);
//   ... later ...
//   past.check_unchanged();
//   PastBuffers buffers(past.changed_buffers());
//   ... the second call, with record() ...
//   past.check_outputs(outputs); buffers.restore();
//
// Tensors are watched by their versions. Threads: one at a time.
class PastCall {
 public:
  PastCall() = default;
  // Notes the training modes of `modules` and copies their buffers. `callee`:
  // what is called, for errors. `remedy`: what else a user can do about inputs
  // that change. `modules`: null if they are not known; must outlive this
  // object.
  PastCall(std::string callee, std::string remedy, CalledModules* modules);

  // Watch from now on.
  void watch_input(std::string name, const at::Tensor& tensor);
  void watch_parameter(const at::Tensor& parameter);

  // Random numbers and statistics, for RandomScope and NormScope.
  CallRecord& record() { return record_; }

  // Notes sizes and dtypes of what the first call has returned. `with_grad`:
  // and which outputs require grad. Throws c10::Error if the call has changed
  // an input in place.
  void first_call_done(const std::vector<at::Tensor>& outputs, bool with_grad);

  // Returns whether `tensor` shares memory with a counter, which has its old
  // value during the second call.
  bool has_memory_of_counter(const at::Tensor& tensor) const;

  // Drops the copies of the buffers that the first call has not changed, except
  // those of a PastBuffers, which change at its end. From now on these must not
  // change (check_unchanged()). Without this function, other code may change
  // any buffer.
  void keep_changed_buffers();

  // Throws c10::Error if an input, a parameter, a training mode, or a buffer
  // without copy has changed, or if a module is no longer there, so that a
  // second call would see something else.
  // Notes the buffers that were not there before the first call. If the first
  // call has changed training modes, sets them as they were before it.
  void check_unchanged();

  // Returns the buffers that must have their old values in a second call: those
  // of norms and counters (is_norm), and others that have changed. After
  // keep_changed_buffers(): all that have a copy.
  std::vector<BufferValue> changed_buffers() const;

  // Throws c10::Error if the second call has returned other sizes or dtypes, or
  // has changed a buffer that was not there before the first call.
  void check_outputs(const std::vector<at::Tensor>& outputs) const;

 private:
  struct Input {
    std::string name;
    WatchedVersion version;
  };
  struct Parameter {
    at::Tensor tensor;
    WatchedVersion version;
  };

  // Throws c10::Error if an input has been changed in place. `when`: by what,
  // or at which time.
  void check_inputs(const char* when) const;
  void note_new_buffers(const Modules& modules);
  bool is_norm(const BufferValue& buffer) const;
  // Returns "parameter '0.weight' ([3, 3] Float) of partition 2".
  std::string describe(const char* kind, const at::Tensor& tensor) const;

  std::string callee_, remedy_;
  CalledModules* modules_ = nullptr;
  WatchedModes modes_;
  std::optional<WatchedModes> changed_modes_;  // if the first call changed them
  std::vector<Input> inputs_;
  std::vector<Parameter> parameters_;
  std::vector<BufferValue> buffers_;  // undefined value: the copy was dropped
  std::vector<BufferValue> new_buffers_;  // without values
  CallRecord record_;
  std::vector<Outline> outputs_;
  bool with_grad_ = false;           // of outputs_
  bool keeps_changed_only_ = false;  // see keep_changed_buffers()
};

}  // namespace gpipe::internal
