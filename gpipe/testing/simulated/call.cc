#include "gpipe/testing/simulated/call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/libtorch/tensors_in.h"
#include "gpipe/testing/simulated/current.h"
#include "gpipe/testing/simulated/generator.h"
#include "gpipe/testing/simulated/simulation.h"
#include "gpipe/testing/simulated/tensor_memory.h"

namespace gpipe::simulated {
namespace {

using c10::IValue;
using torch::jit::Stack;

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
    return device && device->has_index() ? device->index() : current_device();
  }

  bool writes(std::size_t argument) const {
    const auto* alias = schema_.arguments()[argument].alias_info();
    if (alias && alias->isWrite()) return true;
    // In training it changes the running statistics, which its schema does not
    // say.
    return (argument == 3 || argument == 4) &&
           name() == "aten::native_batch_norm" && arguments_[5].toBool();
  }

  // Returns whether result k is one of the arguments.
  bool is_argument(std::size_t k) const {
    const auto* alias = schema_.returns()[k].alias_info();
    return alias && alias->isWrite();
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
    return !schema_.returns().empty() && !returns_tensors();
  }

  bool returns_tensors() const {
    for (const c10::Argument& each : schema_.returns()) {
      const auto kind = each.type()->kind();
      if (kind == c10::TypeKind::TensorType ||
          kind == c10::TypeKind::ListType) {
        return true;
      }
    }
    return false;
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
      const auto* alias = schema_.arguments()[k].alias_info();
      if (alias && alias->isWrite() && alias->afterSets() == wanted) {
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

}  // namespace

void enqueue_call(const c10::OperatorHandle& op, Stack* stack) {
  Call(op, stack).enqueue(stack);
}

}  // namespace gpipe::simulated
