#include "gpipe/runtime/recompute/buffers.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <mutex>

#include "gpipe/runtime/operators/norm_statistics.h"

namespace gpipe::internal {
namespace {

// All scopes of the process, the latest last. Never destroyed.
struct Scopes {
  std::mutex mutex;  // guards also what the scopes have saved
  std::vector<PastBuffers*> all;
  std::atomic<std::size_t> count{0};  // of `all`; read without the mutex

  static Scopes& get() {
    static auto* const scopes = new Scopes();
    return *scopes;
  }
};

bool is_norm(const torch::nn::Module& module) {
  using namespace torch::nn;
  return dynamic_cast<const BatchNorm1dImpl*>(&module) ||
         dynamic_cast<const BatchNorm2dImpl*>(&module) ||
         dynamic_cast<const BatchNorm3dImpl*>(&module) ||
         dynamic_cast<const InstanceNorm1dImpl*>(&module) ||
         dynamic_cast<const InstanceNorm2dImpl*>(&module) ||
         dynamic_cast<const InstanceNorm3dImpl*>(&module);
}

// Buffers of one dtype and device, with their values.
struct Group {
  std::vector<at::Tensor> buffers, values;
};

std::vector<Group> groups_of(const std::vector<BufferValue>& values) {
  std::vector<Group> groups;
  for (const BufferValue& each : values) {
    auto group = std::ranges::find_if(groups, [&](const Group& group) {
      const at::Tensor& first = group.buffers.front();
      return first.scalar_type() == each.buffer.scalar_type() &&
             first.device() == each.buffer.device();
    });
    if (group == groups.end()) group = groups.emplace(group);
    group->buffers.push_back(each.buffer);
    group->values.push_back(each.value);
  }
  return groups;
}

std::vector<at::Tensor> buffers_of(const std::vector<BufferValue>& values) {
  std::vector<at::Tensor> buffers;
  for (const BufferValue& each : values) buffers.push_back(each.buffer);
  return buffers;
}

// Returns the buffers and parameters of the module itself.
std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.buffers(/*recurse=*/false);
  std::ranges::move(module.parameters(/*recurse=*/false),
                    std::back_inserter(tensors));
  return tensors;
}

// Returns whether the values of `tensor` are not those in its memory: LibTorch
// conjugates and negates them when they are read, or it has no memory for
// zeros.
bool has_lazy_values(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor();
}

}  // namespace

bool BufferValue::is_changed() const {
  if (version.is_changed()) return true;
  if (!value.defined()) return false;
  if (buffer.scalar_type() != value.scalar_type() ||
      buffer.sizes() != value.sizes()) {
    return true;
  }
  if (!buffer.is_cpu() || buffer.layout() != at::kStrided ||
      !buffer.is_non_overlapping_and_dense() || has_lazy_values(buffer)) {
    return false;
  }
  if (buffer.strides() != value.strides()) return true;
  return buffer.numel() > 0 &&
         std::memcmp(buffer.const_data_ptr(), value.const_data_ptr(),
                     buffer.nbytes()) != 0;
}

bool contains(const std::vector<at::Tensor>& tensors,
              const at::Tensor& tensor) {
  return std::ranges::any_of(
      tensors, [&](const at::Tensor& each) { return each.is_same(tensor); });
}

std::vector<BufferValue> copy_values(const std::vector<at::Tensor>& buffers) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<BufferValue> values;
  values.reserve(buffers.size());
  for (const at::Tensor& each : buffers) {
    values.push_back({each, at::empty_like(each), WatchedVersion(each)});
  }
  for (const Group& each : groups_of(values)) {
    at::_foreach_copy_(each.values, each.buffers);
  }
  return values;
}

void write_values(const std::vector<BufferValue>& values) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const Group& each : groups_of(values)) {
    // CUDA's kernels for lists raise versions themselves, so they get tensors
    // with other version counters.
    std::vector<at::Tensor> memory;
    memory.reserve(each.buffers.size());
    for (const at::Tensor& buffer : each.buffers) {
      // A copy to a sparse tensor exchanges the tensors that it consists of.
      memory.push_back(buffer.has_storage() ? buffer.variable_data() : buffer);
    }
    // The operator for lists writes no conjugates.
    if (std::ranges::any_of(memory, has_lazy_values)) {
      for (std::size_t k = 0; k < memory.size(); ++k) {
        memory[k].copy_(each.values[k]);
      }
    } else {
      at::_foreach_copy_(memory, each.values);
    }
  }
}

WatchedModes::WatchedModes(std::shared_ptr<const Modules> modules)
    : modules_(std::move(modules)) {
  training_.reserve(modules_->size());
  for (const auto& each : *modules_) training_.push_back(each->is_training());
}

bool WatchedModes::is_changed() const {
  for (std::size_t k = 0; k < training_.size(); ++k) {
    if ((*modules_)[k]->is_training() != training_[k]) return true;
  }
  return false;
}

void WatchedModes::restore() const {
  // Module::train() also sets the submodules, which come later in the list,
  // unless another module has them, too.
  for (std::size_t k = 0; k < training_.size() && is_changed(); ++k) {
    for (std::size_t n = 0; n < training_.size(); ++n) {
      torch::nn::Module& each = *(*modules_)[n];
      if (each.is_training() != training_[n]) {
        each.torch::nn::Module::train(training_[n]);
      }
    }
  }
}

bool WatchedModes::are_among(const Modules& modules) const {
  if (!modules_ || *modules_ == modules) return true;
  const std::unordered_set<std::shared_ptr<torch::nn::Module>> all(
      modules.begin(), modules.end());
  return std::ranges::all_of(
      *modules_, [&](const auto& each) { return all.contains(each); });
}

void CalledModules::add(std::string prefix,
                        std::shared_ptr<torch::nn::Module> module) {
  if (!modules_ || modules_.use_count() > 1) {
    modules_ = std::make_shared<Modules>(modules_ ? *modules_ : Modules());
  }
  for (auto& each : module->modules()) {
    list(*each);
    listed_.push_back(tensors_of(*each));
    modules_->push_back(std::move(each));
  }
  roots_.emplace_back(std::move(prefix), std::move(module));
}

Modules CalledModules::modules_of_now() const {
  Modules all;
  for (const auto& [prefix, root] : roots_) {
    std::ranges::move(root->modules(), std::back_inserter(all));
  }
  return all;
}

void CalledModules::find_again() {
  Modules all = modules_of_now();
  std::vector<std::vector<at::Tensor>> tensors;
  tensors.reserve(all.size());
  for (const auto& each : all) tensors.push_back(tensors_of(*each));
  const auto same_tensors = [](const auto& a, const auto& b) {
    return std::ranges::equal(
        a, b,
        [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
  };
  if (!modules_ || (all == *modules_ &&
                    std::ranges::equal(tensors, listed_, same_tensors))) {
    return;
  }
  ++listings_;
  listed_ = std::move(tensors);
  const std::vector<at::Tensor> statistics = std::move(norm_buffers_);
  norm_buffers_.clear();
  other_buffers_.clear();
  parameters_.clear();
  copies_.clear();
  for (const auto& each : all) list(*each);
  add_norm_buffers(statistics);
  modules_ = std::make_shared<Modules>(std::move(all));
  // Buffers of submodules that are gone.
  std::erase_if(changing_,
                [](const at::Tensor& each) { return each.use_count() == 1; });
}

void CalledModules::list(const torch::nn::Module& module) {
  auto& buffers = is_norm(module) ? norm_buffers_ : other_buffers_;
  for (at::Tensor& buffer : module.buffers(/*recurse=*/false)) {
    if (buffer.defined()) buffers.push_back(std::move(buffer));
  }
  for (at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    if (parameter.defined()) parameters_.push_back(std::move(parameter));
  }
}

void CalledModules::add_norm_buffers(
    const std::vector<at::Tensor>& statistics) {
  for (const at::Tensor& each : statistics) {
    const auto found = std::ranges::find_if(
        other_buffers_,
        [&](const at::Tensor& buffer) { return buffer.is_same(each); });
    if (found == other_buffers_.end()) continue;
    norm_buffers_.push_back(std::move(*found));
    other_buffers_.erase(found);
    copies_.clear();
  }
}

std::vector<BufferValue> CalledModules::copy_buffers() {
  const c10::NoGradGuard no_grad;
  std::vector<BufferValue> all = copy_values(norm_buffers_);
  for (BufferValue& each : all) each.is_norm = true;
  std::vector<Copied> copies;
  for (std::size_t k = 0; k < other_buffers_.size(); ++k) {
    const at::Tensor& buffer = other_buffers_[k];
    const WatchedVersion version(buffer);
    WeakStorage memory = memory_of(buffer);
    BufferValue copy{buffer, {}, version};
    bool has_other_memory = false;
    if (k < copies_.size()) {
      copy.version = copies_[k].version;
      has_other_memory = copies_[k].memory != memory;
      if (auto alive = copies_[k].copy.lock()) {
        copy.value = at::Tensor(std::move(alive));
      }
    }
    const bool is_changed =
        copy.value.defined() && (has_other_memory || copy.is_changed());
    if (is_changed && !is_changing(buffer)) changing_.push_back(buffer);
    if (is_changed || !copy.value.defined()) {
      copy = {buffer, buffer.clone(), version};
    }
    copies.push_back(
        {version, std::move(memory), WeakTensor(copy.value.getIntrusivePtr())});
    all.push_back(std::move(copy));
  }
  copies_ = std::move(copies);
  return all;
}

CalledModules::WeakStorage CalledModules::memory_of(const at::Tensor& tensor) {
  return tensor.has_storage()
             ? tensor.storage().getWeakStorageImpl()
             : WeakStorage(c10::intrusive_ptr<c10::StorageImpl>());
}

bool CalledModules::has_memory_of_buffer(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const auto has_its_memory = [&](const at::Tensor& buffer) {
    return buffer.has_storage() && buffer.is_alias_of(tensor);
  };
  return std::ranges::any_of(norm_buffers_, has_its_memory) ||
         std::ranges::any_of(other_buffers_, has_its_memory);
}

std::string CalledModules::name_of(const at::Tensor& tensor) const {
  for (const auto& [prefix, module] : roots_) {
    for (const auto& named :
         {module->named_parameters(), module->named_buffers()}) {
      for (const auto& each : named) {
        if (each.value().is_same(tensor)) return prefix + each.key();
      }
    }
  }
  return "";
}

PastBuffers::PastBuffers(const std::vector<BufferValue>& past)
    : now_(copy_values(buffers_of(past))) {
  for (const BufferValue& each : past) {
    if (each.buffer.has_storage()) {
      storages_.insert(each.buffer.storage().unsafeGetStorageImpl());
    }
  }
  try {
    write_values(past);
  } catch (...) {
    end();
    throw;
  }
  Scopes& scopes = Scopes::get();
  const std::lock_guard<std::mutex> lock(scopes.mutex);
  scopes.all.push_back(this);
  ++scopes.count;
}

PastBuffers::~PastBuffers() {
  {
    Scopes& scopes = Scopes::get();
    const std::lock_guard<std::mutex> lock(scopes.mutex);
    scopes.count -= std::erase(scopes.all, this);
  }
  end();
}

void PastBuffers::restore() {
  write_values(now_);
  restored_ = true;  // after an error, the destructor tries once more
  {
    const std::lock_guard<std::mutex> lock(Scopes::get().mutex);
    for (const Saved& each : std::exchange(saved_, {})) {
      if (each.version.is_changed()) {
        each.copy.unsafeGetTensorImpl()->bump_version();
      }
    }
  }
  for (const BufferValue& each : now_) {
    TORCH_CHECK(
        !each.buffer.has_storage() ||
            storages_.count(each.buffer.storage().unsafeGetStorageImpl()) > 0,
        "a forward that is computed again gives a buffer (",
        each.buffer.toString(), " of sizes ", each.buffer.sizes(),
        ") other memory, as by set_data(), so that the backward may read a "
        "wrong value; change the buffer in place (copy_())");
  }
}

void PastBuffers::end() noexcept {
  if (restored_) return;
  try {
    restore();
  } catch (...) {
    // The device has failed. The error that reported this is more useful.
  }
}

at::Tensor PastBuffers::to_save(const at::Tensor& tensor) {
  Scopes& scopes = Scopes::get();
  // Without a lock: most tensors are saved while there is no scope, and a
  // scope that covers this thread's work was made before it.
  if (scopes.count == 0 || UnreadStatistics::has(tensor)) return tensor;
  const std::lock_guard<std::mutex> lock(scopes.mutex);
  PastBuffers* const scope = scope_of(tensor);
  if (!scope) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor copy = tensor.clone();
  scope->saved_.push_back({WatchedVersion(tensor), copy});
  return copy;
}

bool PastBuffers::has(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(Scopes::get().mutex);
  return scope_of(tensor) != nullptr;
}

PastBuffers* PastBuffers::scope_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto& all = Scopes::get().all;
  const auto scope =
      std::find_if(all.rbegin(), all.rend(), [&](const PastBuffers* each) {
        return each->storages_.count(storage) > 0;
      });
  return scope == all.rend() ? nullptr : *scope;
}

}  // namespace gpipe::internal
