// The kernels of the simulated accelerators: most operators are calls of CPU
// kernels that a stream runs later; copies; and operators that only change a
// tensor's layout or memory.
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_copy_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/libtorch/dispatcher.h"
#include "gpipe/testing/simulated/memory.h"
#include "gpipe/testing/simulated/order.h"
#include "gpipe/testing/simulated/simulated.h"
#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {
namespace {

using c10::IValue;
using torch::jit::Stack;

// Returns the index of `device`, or the current device.
c10::DeviceIndex index_of(const std::optional<c10::Device>& device) {
  return device && device->has_index() ? device->index() : current_device();
}

// Returns zeros of the same layout, for a trial.
at::Tensor zeros_as(const at::Tensor& tensor) {
  const at::Tensor zeros = at::empty_strided(
      tensor.sizes(), tensor.strides(),
      at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU));
  return wrapped_as(tensor, zeros.zero_());
}

// Returns a copy of the values in the same layout.
at::Tensor values_as(const at::Tensor& tensor) {
  const at::Tensor copy = at::empty_strided(
      tensor.sizes(), tensor.strides(),
      at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU));
  return wrapped_as(
      tensor, copy.copy_(is_simulated(tensor) ? host_alias(tensor) : tensor));
}

// Returns an alias like host_alias() whose storage can be resized. Some kernels
// enlarge their output temporarily, and continue with other memory then.
at::Tensor growing_alias(const at::Tensor& tensor) {
  return at::for_blob(tensor.mutable_data_ptr(), tensor.sizes())
      .strides(tensor.strides())
      .options(at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU))
      .allocator(c10::GetAllocator(c10::kCPU))
      .resizeable_storage()
      .make_tensor();
}

at::Tensor device_empty(const at::Tensor& like, c10::DeviceIndex device) {
  return at::empty_strided(like.sizes(), like.strides(),
                           at::TensorOptions()
                               .dtype(like.dtype())
                               .device(c10::Device(kDeviceType, device)));
}

// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack)
      : op_(op),
        schema_(op.schema()),
        arguments_(torch::jit::last(*stack, schema_.arguments().size()).vec()),
        device_(find_device()) {}

  void enqueue(Stack* stack) {
    const DeviceScope scope(device_);
    const c10::Stream stream = current_stream(device_);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    fill_generator();

    bool is_answered = false;
    Stack results = try_out(stream, &is_answered);
    if (!is_answered) {
      if (advanced_.defined()) generator_.set_state(advanced_.get_state());
      results = make_results(results);
      Simulation::get().enqueue(stream, work_for(results));
    }
    torch::jit::drop(*stack, arguments_.size());
    for (IValue& result : results) stack->push_back(std::move(result));
  }

 private:
  // Runs the operator on the host, on values only if needed, and returns what
  // trial() does. If the operator is a question, returns only its results and
  // sets `is_answered`: nothing is left for the stream.
  Stack try_out(const c10::Stream& stream, bool* is_answered) {
    if (!depends_on_values()) {
      try {
        return trial(zeros_as);
      } catch (const c10::Error&) {
        // The operator may not accept zeros.
      }
    }
    // The host waits for the values, so that the operator can run now.
    *is_answered = is_question();
    if (*is_answered) Simulation::get().enqueue(stream, look());
    Simulation::get().host_wait(stream);
    Stack outcome = trial(values_as);
    if (*is_answered) outcome.resize(schema_.returns().size());
    return outcome;
  }

  // Returns the real call, which works on aliases of the device's memory.
  Work work_for(const Stack& results) {
    Work work{name(), {}, {}};
    Stack real;
    // Pairs of tensors that the operator writes: the one passed to it, and the
    // target in device memory. They are kept until the call has returned:
    // LibTorch returns several outputs as references to arguments, which it has
    // dropped by then.
    std::vector<std::pair<at::Tensor, at::Tensor>> written;
    for (std::size_t k = 0; k < arguments_.size(); ++k) {
      const bool write = writes(k);
      real.push_back(
          internal::with_tensors(at_host(k), [&](const at::Tensor& tensor) {
            // The current value of a CPU scalar is passed.
            if (!is_simulated(tensor))
              return wrapped_as(tensor, tensor.clone());
            work.accesses.push_back(access(tensor, write));
            if (!write) return host_alias(tensor);
            written.emplace_back(growing_alias(tensor), host_alias(tensor));
            return written.back().first;
          }));
    }
    std::vector<at::Tensor> fresh;
    for (std::size_t k = 0; k < results.size(); ++k) {
      if (is_argument(k)) continue;
      internal::for_each_tensor(results[k], [&](const at::Tensor& tensor) {
        work.accesses.push_back(access(tensor, /*write=*/true));
        fresh.push_back(host_alias(tensor));
      });
    }
    if (snapshot_.defined()) real[*generator_index_] = snapshot_;
    work.run = [op = op_, real = std::move(real), fresh = std::move(fresh),
                written = std::move(written),
                returns_argument = returns_argument(),
                name = name()]() mutable {
      op.callBoxed(real);
      for (const auto& [passed, target] : written) {
        if (passed.const_data_ptr() != target.const_data_ptr()) {
          target.copy_(passed);
        }
      }
      std::size_t next = 0;
      for (std::size_t k = 0; k < real.size(); ++k) {
        if (returns_argument[k]) continue;
        internal::for_each_tensor(real[k], [&](const at::Tensor& tensor) {
          TORCH_CHECK(tensor.sizes() == fresh[next].sizes(), "the size of ",
                      name,
                      "'s result depends on values; name it in "
                      "depends_on_values() of the simulated device");
          fresh[next++].copy_(tensor);
        });
      }
    };
    return work;
  }

  std::string name() const { return schema_.operator_name().name; }

  c10::DeviceIndex find_device() const {
    std::optional<c10::Device> device;
    for (std::size_t k = 0; k < arguments_.size(); ++k) {
      const bool is_list = arguments_[k].isList();
      internal::for_each_tensor(arguments_[k], [&](const at::Tensor& tensor) {
        // As on other accelerators, scalars and the elements of a list of
        // indices may be on the host.
        if (tensor.device().is_cpu() &&
            (tensor.dim() == 0 || (is_list && !arguments_[k].isTensorList())) &&
            !writes(k)) {
          return;
        }
        if (!device) device = tensor.device();
        TORCH_CHECK(tensor.device() == *device,
                    "Expected all tensors to be on the same device, but found "
                    "at least two devices, ",
                    *device, " and ", tensor.device(), "! (", name(), ")");
      });
      if (!device && arguments_[k].isDevice()) {
        device = arguments_[k].toDevice();
      }
    }
    return index_of(device);
  }

  bool writes(std::size_t argument) const {
    if (internal::is_written(schema_.arguments()[argument])) return true;
    // In training it changes the running statistics, which its schema does not
    // say.
    return (argument == 3 || argument == 4) &&
           name() == "aten::native_batch_norm" && arguments_[5].toBool();
  }

  // Returns whether result k is one of the arguments.
  bool is_argument(std::size_t k) const {
    return internal::is_written(schema_.returns()[k]);
  }
  std::vector<bool> returns_argument() const {
    std::vector<bool> all;
    for (std::size_t k = 0; k < schema_.returns().size(); ++k) {
      all.push_back(is_argument(k));
    }
    return all;
  }

  // Returns whether the operator only returns a value to the host.
  bool is_question() const {
    for (std::size_t k = 0; k < arguments_.size(); ++k) {
      if (writes(k)) return false;
    }
    return !schema_.returns().empty() && !internal::returns_tensors(schema_);
  }

  // Returns work that reads the arguments and does nothing else.
  Work look() const {
    Work work{name(), {}, [] {}};
    for (const IValue& argument : arguments_) {
      internal::for_each_tensor(argument, [&](const at::Tensor& tensor) {
        if (is_simulated(tensor)) {
          work.accesses.push_back(access(tensor, /*write=*/false));
        }
      });
    }
    return work;
  }

  // Returns whether the host needs the values to know the result's shape.
  bool depends_on_values() const {
    static const std::set<std::string> names = {
        "aten::bincount",    "aten::masked_select",
        "aten::multinomial", "aten::nonzero",
        "aten::_unique2",    "aten::repeat_interleave",
        "aten::unique_dim",  "aten::unique_consecutive",
    };
    if (names.count(name())) return true;
    for (const c10::Argument& each : schema_.returns()) {
      const auto kind = each.type()->kind();
      if (kind != c10::TypeKind::TensorType &&
          kind != c10::TypeKind::ListType) {
        return true;
      }
    }
    if (name().rfind("aten::index", 0) == 0 ||
        name().rfind("aten::_index_put", 0) == 0) {
      for (const IValue& argument : arguments_) {
        bool mask = false;
        if (argument.isList()) {
          internal::for_each_tensor(argument, [&](const at::Tensor& tensor) {
            mask = mask || tensor.scalar_type() == at::kBool ||
                   tensor.scalar_type() == at::kByte;
          });
        }
        if (mask) return true;
      }
    }
    return false;
  }

  // Returns argument k, with the CPU instead of the device if it is a device.
  IValue at_host(std::size_t k) const {
    if (arguments_[k].isDevice()) return c10::Device(at::kCPU);
    return arguments_[k];
  }

  // Fixes the random numbers when the operator is enqueued, not when it runs,
  // as real accelerators do.
  void fill_generator() {
    const auto index = schema_.argumentIndexWithName("generator");
    if (!index) return;
    generator_index_ = static_cast<std::size_t>(*index);
    IValue& argument = arguments_[*generator_index_];
    generator_ =
        argument.isNone() ? default_generator(device_) : argument.toGenerator();
    TORCH_CHECK(generator_.device() == c10::Device(kDeviceType, device_),
                "Expected a generator of ", c10::Device(kDeviceType, device_),
                " but found one of ", generator_.device(), " (", name(), ")");
    drawing_ = std::unique_lock<std::mutex>(generator_.mutex());
    snapshot_ = on_cpu(generator_);
  }

  // Runs the operator on CPU tensors, which `replace` makes from the arguments.
  // Returns the results followed by the arguments.
  Stack trial(at::Tensor (*replace)(const at::Tensor&)) {
    Stack arguments;
    for (std::size_t k = 0; k < arguments_.size(); ++k) {
      arguments.push_back(internal::with_tensors(at_host(k), replace));
    }
    if (snapshot_.defined()) {
      advanced_ = on_cpu(generator_);
      arguments[*generator_index_] = advanced_;
    }
    Stack stack = arguments;
    op_.callBoxed(stack);
    for (IValue& argument : arguments) stack.push_back(std::move(argument));
    return stack;
  }

  // Returns the results for the caller: the arguments that the operator
  // changes, resized as in the trial, and new memory for the others.
  Stack make_results(const Stack& outcome) {
    const std::size_t returns = schema_.returns().size();
    for (std::size_t k = 0; k < arguments_.size(); ++k) {
      if (!writes(k) || !arguments_[k].isTensor()) continue;
      const at::Tensor& argument = arguments_[k].toTensor();
      const at::Tensor& after = outcome[returns + k].toTensor();
      if (argument.defined() && argument.sizes() != after.sizes()) {
        argument.resize_(after.sizes());
        argument.as_strided_(after.sizes(), after.strides());
      }
    }
    Stack results;
    for (std::size_t k = 0; k < returns; ++k) {
      if (is_argument(k)) {
        results.push_back(argument_of(k));
      } else {
        TORCH_CHECK_NOT_IMPLEMENTED(
            !schema_.returns()[k].alias_info(), name(),
            " returns a view, but the simulated devices' kernel would copy");
        results.push_back(
            internal::with_tensors(outcome[k], [&](const at::Tensor& tensor) {
              return device_empty(tensor, device_);
            }));
      }
    }
    return results;
  }

  const IValue& argument_of(std::size_t result) const {
    const auto& wanted = schema_.returns()[result].alias_info()->afterSets();
    for (std::size_t k = 0; k < arguments_.size(); ++k) {
      const c10::Argument& argument = schema_.arguments()[k];
      if (internal::is_written(argument) &&
          argument.alias_info()->afterSets() == wanted) {
        return arguments_[k];
      }
    }
    TORCH_INTERNAL_ASSERT(false, name(), " returns an unknown argument");
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack arguments_;
  const c10::DeviceIndex device_;

  std::optional<std::size_t> generator_index_;
  at::Generator generator_, snapshot_, advanced_;
  std::unique_lock<std::mutex> drawing_;
};

// Enqueues an operator on the current stream of the device of its arguments,
// and replaces the arguments on `stack` by the results. LibTorch's CPU kernel
// runs later on the device's memory. If the host needs the values, waits for
// them. Throws c10::Error if the arguments do not fit.
//
// at::native::cpu_fallback is no alternative: it runs the operator at once, on
// copies, and so would not show errors of order.
void enqueue_call(const c10::OperatorHandle& op, Stack* stack) {
  Call(op, stack).enqueue(stack);
}

// ---- Copies.

std::mutex cost_mutex;
CopyCost cost_of_copies;

double seconds(const at::Tensor& tensor) {
  std::lock_guard<std::mutex> lock(cost_mutex);
  return cost_of_copies.latency +
         cost_of_copies.seconds_per_byte * static_cast<double>(tensor.nbytes());
}

void sleep(double seconds) {
  if (seconds > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
}

Simulation& simulation() { return Simulation::get(); }

void within_device(const at::Tensor& source, const at::Tensor& target) {
  simulation().enqueue(stream_of(target),
                       {"a copy",
                        {access(source, false), access(target, true)},
                        [from = host_alias(source), to = host_alias(target)] {
                          to.copy_(from);
                        }});
}

// Copies like CUDA: on the current stream of the source, after the earlier work
// and before the later work of the target's stream.
void between_devices(const at::Tensor& source, const at::Tensor& target) {
  const c10::Stream from_stream = stream_of(source);
  const c10::Stream to_stream = stream_of(target);
  simulation().block(from_stream, simulation().record(to_stream));
  simulation().enqueue(from_stream,
                       {"a copy to another device",
                        {access(source, false), access(target, true)},
                        [from = host_alias(source), to = host_alias(target),
                         time = seconds(source)] {
                          sleep(time);
                          to.copy_(from);
                        },
                        to_stream});
  simulation().block(to_stream, simulation().record(from_stream));
}

// Copies from the host. Memory that is not pinned has been read when this
// returns. Pinned memory is read later, unless the caller must wait.
void from_host(const at::Tensor& source, const at::Tensor& target,
               bool non_blocking) {
  const c10::Stream stream = stream_of(target);
  const bool pinned = is_pinned(source.storage().data());
  const at::Tensor read = pinned ? source : source.clone();
  std::vector<Access> accesses = {access(target, true)};
  if (pinned) accesses.push_back(access(source, false));
  simulation().enqueue(
      stream, {"a copy from the host", std::move(accesses),
               [from = read, to = host_alias(target), time = seconds(source)] {
                 sleep(time);
                 to.copy_(from);
               }});
  if (!non_blocking) simulation().host_wait(stream);
}

// Copies as to pinned memory: later, unless the caller must wait.
void to_host(const at::Tensor& source, const at::Tensor& target,
             bool non_blocking) {
  const c10::Stream stream = stream_of(source);
  std::vector<Access> accesses = {access(source, false)};
  if (is_pinned(target.storage().data())) {
    accesses.push_back(access(target, true));
  }
  simulation().enqueue(stream, {"a copy to the host", std::move(accesses),
                                [from = host_alias(source), to = target,
                                 time = seconds(source)] {
                                  sleep(time);
                                  to.copy_(from);
                                }});
  if (!non_blocking) simulation().host_wait(stream);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target,
                     bool non_blocking) {
  if (source.numel() != target.numel()) {
    return copy_from(source.expand(target.sizes()), target, non_blocking);
  }
  if (source.device() == target.device()) {
    within_device(source, target);
  } else if (is_simulated(source) && is_simulated(target)) {
    between_devices(source, target);
  } else if (is_simulated(target)) {
    from_host(source, target, non_blocking);
  } else {
    to_host(source, target, non_blocking);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source,
                                const at::Tensor& target) {
  if (source.sizes() != target.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, /*non_blocking=*/false);
}

// ---- Operators that call others, or only change a tensor's layout or memory.

c10::OperatorHandle operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

// LibTorch calls these operators on an accelerator without its own convolution.
void convolution(const c10::OperatorHandle&, Stack* stack) {
  static const auto op = operator_named("aten::convolution");
  enqueue_call(op, stack);
}

void convolution_backward(const c10::OperatorHandle&, Stack* stack) {
  static const auto op = operator_named("aten::convolution_backward");
  // The sizes of the bias are the fourth argument.
  constexpr std::size_t kArguments = 10, kBiasSizes = 3;
  const int64_t channels =
      torch::jit::peek(*stack, 0, kArguments).toTensor().size(1);
  stack->insert(
      stack->end() - static_cast<std::ptrdiff_t>(kArguments - kBiasSizes),
      IValue(c10::List<int64_t>({channels})));
  enqueue_call(op, stack);
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<c10::Device> device,
                 std::optional<bool>,
                 std::optional<at::MemoryFormat> memory_format) {
  const DeviceScope scope(index_of(device));
  return at::detail::empty_generic(sizes, &Memory::get(),
                                   c10::DispatchKeySet(c10::DispatchKey::HPU),
                                   c10::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>,
                         std::optional<c10::Device> device,
                         std::optional<bool>) {
  const DeviceScope scope(index_of(device));
  return at::detail::empty_strided_generic(
      sizes, strides, &Memory::get(),
      c10::DispatchKeySet(c10::DispatchKey::HPU), c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef sizes,
                      c10::SymIntArrayRef strides,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
      offset ? std::make_optional(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef sizes,
                         c10::SymIntArrayRef strides) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(sizes),
                                    C10_AS_INTARRAYREF_SLOW(strides));
}

// Resizes a tensor in place. If the memory is too small, new memory replaces it
// and the contents are lost.
const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef sizes,
                         std::optional<at::MemoryFormat>) {
  const auto target = C10_AS_INTARRAYREF_SLOW(sizes);
  const std::size_t bytes =
      (static_cast<std::size_t>(self.storage_offset()) +
       static_cast<std::size_t>(c10::multiply_integers(target))) *
      self.itemsize();
  c10::Storage storage = self.storage();
  if (storage.nbytes() < bytes) {
    const DeviceScope scope(self.device().index());
    storage.set_data_ptr(Memory::get().allocate(bytes));
    storage.set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(target);
  return self;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  Memory::get().recordStream(self.storage().data_ptr(), stream);
}

// Raises the versions of tensors that an operator on lists has changed, as
// CUDA's kernels do, and not only autograd's.
void raise_versions(at::TensorList changed) {
  for (const at::Tensor& each : changed) {
    each.unsafeGetTensorImpl()->bump_version();
  }
}

// Copies a list of tensors with one launch, as CUDA does for tensors of one
// device and dtype.
void foreach_copy(at::TensorList targets, at::TensorList sources,
                  bool non_blocking) {
  std::vector<Access> accesses;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (std::size_t k = 0; k < targets.size(); ++k) {
    const at::Tensor &from = sources[k], &to = targets[k];
    if (from.device() != targets[0].device() ||
        to.device() != targets[0].device() ||
        from.scalar_type() != targets[0].scalar_type() ||
        to.scalar_type() != targets[0].scalar_type()) {
      at::native::foreach_tensor_copy_list_kernel_slow_(targets, sources,
                                                        non_blocking);
      return;
    }
    accesses.push_back(access(from, false));
    accesses.push_back(access(to, true));
    copies.emplace_back(host_alias(from), host_alias(to));
  }
  if (copies.empty()) return;
  const DeviceScope scope(targets[0].device().index());
  Simulation::get().enqueue(
      stream_of(targets[0]),
      {"aten::_foreach_copy_", std::move(accesses), [copies] {
         for (const auto& [from, to] : copies) to.copy_(from);
       }});
  raise_versions(targets);
}

// Enqueues an operator on a list of tensors as one launch, as CUDA does for
// tensors of one device and dtype. (CUDA takes a launch per some 64 tensors.)
void foreach_call(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t arguments = op.schema().arguments().size();
  const auto tensors = torch::jit::peek(*stack, 0, arguments).toTensorVector();
  for (const at::Tensor& each : tensors) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        each.dtype() == tensors.front().dtype(), op.operator_name(),
        " takes tensors of one dtype on a simulated device, but they have ",
        each.dtype(), " and ", tensors.front().dtype());
  }
  if (tensors.empty()) {
    torch::jit::drop(*stack, arguments);
  } else {
    enqueue_call(op, stack);
    raise_versions(tensors);
  }
}

// Implements fused dropout, which draws from the device's default generator, as
// CUDA's.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input,
                                                  double p,
                                                  std::optional<bool> train) {
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  if (train && !*train) {
    return {input.clone(), mask.fill_(true)};
  }
  mask.bernoulli_(1 - p, default_generator(input.device().index()));
  return {input.mul(mask).mul_(p < 1 ? 1 / (1 - p) : 0), mask};
}

}  // namespace

void set_copy_cost(const CopyCost& cost) {
  std::lock_guard<std::mutex> lock(cost_mutex);
  cost_of_copies = cost;
}

TORCH_LIBRARY_IMPL(_, HPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&enqueue_call>());
}

TORCH_LIBRARY_IMPL(aten, HPU, library) {
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("resize_", resize);
  library.impl("record_stream", record_stream);
  library.impl("native_dropout", native_dropout);
  library.impl("_foreach_copy_", foreach_copy);
  for (const char* name :
       {"_foreach_sub_.ScalarList", "_foreach_mul_.ScalarList",
        "_foreach_div_.ScalarList"}) {
    library.impl(name,
                 torch::CppFunction::makeFromBoxedFunction<&foreach_call>());
  }
  library.impl("convolution_overrideable",
               torch::CppFunction::makeFromBoxedFunction<&convolution>());
  library.impl(
      "convolution_backward_overrideable",
      torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  // For these operators the CPU has a kernel of its own. Without these entries
  // LibTorch would use other operators, which round differently or need more
  // memory.
  for (const char* name :
       {"addr", "addr.out", "linalg__powsum", "mish_backward", "mse_loss",
        "native_group_norm", "native_layer_norm", "silu_backward",
        "smooth_l1_loss"}) {
    library.impl(name,
                 torch::CppFunction::makeFromBoxedFunction<&enqueue_call>());
  }
}

}  // namespace gpipe::simulated
