// Rows of parameters, as an optimizer over
// PipelineModule::optimizer_parameters() has them, and memory for copies.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::internal {

// ---- Memory for copies

// Returns a new dense CPU tensor with the sizes and the dtype of `tensor`,
// without values. It is pinned for a tensor on CUDA or XPU, for which LibTorch
// has pinned memory: a copy into it is several times as fast. Throws c10::Error
// if the host has no memory. Thread-safe.
inline at::Tensor host_memory_for(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(),
                   at::TensorOptions(tensor.scalar_type())
                       .pinned_memory(tensor.is_cuda() || tensor.is_xpu()));
}

// ---- Rows of parameters

// The rows `first` to `end` (without `end`) of a parameter.
struct ShardName {
  std::string parameter;
  int64_t first = 0, end = 0;
};

// Returns the name of these rows in OptimizerState::parameters:
// "0.weight[3:6]".
std::string to_string(const ShardName& shard);

// Returns the rows that a name stands for, or nullopt if it is the name of a
// whole parameter.
std::optional<ShardName> parse_shard_name(const std::string& name);

// Returns the parameter of which a name is, whole or not.
std::string parameter_of(const std::string& name);

// A parameter of a module, and the rows of it that an optimizer's tensor is.
struct NamedRows {
  std::vector<std::string> names;
  at::Tensor parameter;
  int64_t first = 0, end = 0;
  bool is_shard = false;  // a tensor of its own that shares the memory
  bool is_whole = true;

  // Returns the name of these rows under one of `names`.
  std::string key(const std::string& name) const;
};

// The parameters of a module by tensor.
class ParameterNames {
 public:
  using Dict = torch::OrderedDict<std::string, at::Tensor>;

  // `names`: named_parameters() of a module. Must outlive this.
  explicit ParameterNames(const Dict& names);

  // Returns the parameter that `tensor` is, or of which it is some rows;
  // nullopt if there is none.
  std::optional<NamedRows> find(const at::Tensor& tensor) const;

 private:
  const Dict& names_;
  std::map<const void*, std::vector<std::string>> by_tensor_, by_storage_;
};

}  // namespace gpipe::internal
