#include "gpipe/runtime/recompute/past_call.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace gpipe::internal {

Outline::Outline(const at::Tensor& tensor, bool with_grad)
    : defined(tensor.defined()) {
  if (!defined) return;
  type = tensor.scalar_type();
  if (!tensor.is_nested()) {
    sizes = {tensor.sizes().begin(), tensor.sizes().end()};
  }
  requires_grad = with_grad && tensor.requires_grad();
}

std::string Outline::text() const {
  if (!defined) return "undefined";
  return c10::str(c10::IntArrayRef(sizes), " ", type,
                  requires_grad ? " that requires grad" : "");
}

PastCall::PastCall(std::string callee, std::string remedy,
                   CalledModules* modules)
    : callee_(std::move(callee)),
      remedy_(std::move(remedy)),
      modules_(modules) {
  record_.is_restored = [modules](const at::Tensor& tensor) {
    return modules && modules->has_buffer(tensor);
  };
  if (!modules_) return;
  modes_ = WatchedModes(modules_->modules());
  buffers_ = modules_->copy_buffers();
}

void PastCall::watch_input(std::string name, const at::Tensor& tensor) {
  // Work in place on no elements changes nothing. Dropout returns its input if
  // that has none.
  if (tensor.defined() && tensor.numel() == 0) return;
  inputs_.push_back({std::move(name), WatchedVersion(tensor)});
}

void PastCall::watch_parameter(const at::Tensor& parameter) {
  parameters_.push_back({parameter, WatchedVersion(parameter)});
}

void PastCall::check_inputs(const char* when) const {
  for (const Input& each : inputs_) {
    TORCH_CHECK(!each.version.is_changed(), each.name, " of ", callee_,
                " has been changed in place ", when,
                ", so that the forward cannot be computed again with the same "
                "value; let the change work out of place (such as ReLU without "
                "inplace), or on a clone",
                remedy_);
  }
}

void PastCall::keep_changed_buffers() {
  for (BufferValue& each : buffers_) {
    if (!each.is_changed() && !modules_->is_changing(each.buffer) &&
        !contains(record_.statistics, each.buffer) &&
        !PastBuffers::has(each.buffer)) {
      each.value.reset();
    }
  }
  keeps_changed_only_ = true;
}

void PastCall::first_call_done(const std::vector<at::Tensor>& outputs,
                               bool with_grad) {
  check_inputs("by the forward itself");
  if (modes_.is_changed()) changed_modes_.emplace(modules_->modules());
  with_grad_ = with_grad;
  for (const at::Tensor& each : outputs) {
    outputs_.emplace_back(each, with_grad);
  }
}

std::string PastCall::describe(const char* kind,
                               const at::Tensor& tensor) const {
  const std::string name = modules_ ? modules_->name_of(tensor) : "";
  return c10::str(name.empty() ? "a " : "", kind,
                  name.empty() ? "" : " '" + name + "'", " (",
                  Outline(tensor).text(), ") of ", callee_);
}

void PastCall::check_unchanged() {
  check_inputs("between forward and backward");
  const Modules modules = modules_ ? modules_->modules_of_now() : Modules();
  TORCH_CHECK(modes_.are_among(modules), "a module of ", callee_,
              " was replaced between forward and backward, so that the forward "
              "cannot be computed again. Call backward first");
  TORCH_CHECK(!(changed_modes_ ? *changed_modes_ : modes_).is_changed(),
              "train() or eval() was called between forward and backward; ",
              callee_,
              " cannot be computed again in another mode. Call backward first");
  for (const Parameter& each : parameters_) {
    TORCH_CHECK(!each.version.is_changed(), describe("parameter", each.tensor),
                " has been changed in place between forward and backward; the "
                "forward cannot be computed again with it. Call backward "
                "first, or forward again; a tensor that the forward changes "
                "itself must be a buffer");
  }
  for (const BufferValue& each : buffers_) {
    TORCH_CHECK(
        !each.value.defined() || each.value.sizes() == each.buffer.sizes(),
        describe("buffer", each.buffer), " had the sizes ", each.value.sizes(),
        " before the forward, which cannot be computed again if buffers are "
        "resized",
        remedy_);
    TORCH_CHECK(each.value.defined() || !each.version.is_changed(),
                describe("buffer", each.buffer),
                " has been changed in place between forward and backward, and "
                "not by the forward that is computed again; call backward "
                "first, or change the buffer in each forward");
  }
  note_new_buffers(modules);
  if (changed_modes_) modes_.restore();
}

void PastCall::note_new_buffers(const Modules& modules) {
  const auto is_in = [](const at::Tensor& buffer, const auto& list,
                        auto tensor) {
    return std::ranges::any_of(
        list, [&](const auto& each) { return (each.*tensor).is_same(buffer); });
  };
  new_buffers_.clear();
  for (const auto& module : modules) {
    for (at::Tensor& each : module->buffers(/*recurse=*/false)) {
      if (!each.defined() || is_in(each, buffers_, &BufferValue::buffer) ||
          // Restored anyway.
          is_in(each, record_.counters, &CallRecord::Counter::tensor)) {
        continue;
      }
      const WatchedVersion version(each);
      new_buffers_.push_back({std::move(each), {}, version});
    }
  }
}

bool PastCall::is_norm(const BufferValue& buffer) const {
  // A layer may have used the buffer as statistics only after it was noted.
  return buffer.is_norm || contains(modules_->norm_buffers(), buffer.buffer) ||
         contains(record_.statistics, buffer.buffer);
}

bool PastCall::has_memory_of_counter(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  return std::ranges::any_of(
      record_.counters, [&](const CallRecord::Counter& each) {
        return each.tensor.has_storage() && each.tensor.is_alias_of(tensor);
      });
}

std::vector<BufferValue> PastCall::changed_buffers() const {
  std::vector<BufferValue> changed;
  for (BufferValue each : buffers_) {
    each.is_norm = is_norm(each);
    if (each.value.defined() &&
        (keeps_changed_only_ || each.is_norm || each.is_changed() ||
         modules_->is_changing(each.buffer))) {
      changed.push_back(std::move(each));
    }
  }
  for (const CallRecord::Counter& each : record_.counters) {
    changed.push_back({each.tensor, each.before, {}, /*is_norm=*/true});
  }
  return changed;
}

void PastCall::check_outputs(const std::vector<at::Tensor>& outputs) const {
  for (const BufferValue& each : new_buffers_) {
    TORCH_CHECK(!each.is_changed(), describe("buffer", each.buffer),
                " is changed by the forward, but was registered too late for a "
                "recompute to know its value before; register it in the "
                "constructor of its module, before a pipeline is made of it",
                remedy_);
  }
  TORCH_CHECK(outputs.size() == outputs_.size(), callee_, " returned ",
              outputs_.size(), " tensors in the forward and ", outputs.size(),
              " in the recompute; ", callee_,
              " must do the same in both calls");
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const Outline now(outputs[k], with_grad_);
    TORCH_CHECK(now == outputs_[k], "output ", k, " of ", callee_, " is ",
                outputs_[k].text(), " in the forward and ", now.text(),
                " in the recompute; ", callee_,
                " must do the same in both calls");
  }
}

}  // namespace gpipe::internal
