#include "balancing/profile.h"

namespace gpipe::balancing::detail {

Profile profile(const torch::nn::Sequential& module,
                const internal::Value& sample, const TimeOptions& options) {
  Profile result;
  // The memory profile comes first: it is fast, and finds a model that does not
  // work.
  result.memory = profile_memory(module, sample);
  result.times = profile_times(module, sample, options);
  result.names = module->named_children().keys();
  result.device = options.device().str();
  for (const at::Tensor& tensor : sample.tensors()) {
    if (tensor.defined() && tensor.dim() > 0) result.rows = tensor.size(0);
  }
  return result;
}

}  // namespace gpipe::balancing::detail
