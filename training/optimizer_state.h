// The state of an optimizer by names of parameters. It depends neither on the
// order of the parameters nor on which process holds which of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/weights/state_dict.h"

namespace torch::optim {
class Optimizer;
}

namespace gpipe {

// The state of an optimizer by names of parameters.
struct OptimizerState {
  // The options of a parameter group: "lr", "momentum", "beta1", ... A bool is
  // 0 or 1.
  using Options = std::map<std::string, double>;

  // The state of one parameter.
  struct Parameter {
    std::size_t group = 0;                  // index into `groups`
    std::map<std::string, int64_t> counts;  // "step"
    // "momentum_buffer", "exp_avg", ..., each with the parameter's shape. Empty
    // until the optimizer has first used a gradient of the parameter.
    std::map<std::string, at::Tensor> tensors;
  };

  std::string type;  // "AdamW"
  std::vector<Options> groups;
  // By name. "0.weight[3:6]" is the name of the rows 3, 4 and 5 of a parameter,
  // which an optimizer of optimizer_parameters() (gpipe/pipeline_module.h) has.
  std::map<std::string, Parameter> parameters;
};

// Returns the state of an SGD, Adam, AdamW, RMSprop or Adagrad optimizer of
// torch::optim. Its tensors are detached and share the optimizer's memory, so
// they change with it.
//
// `names`: module->named_parameters(). The optimizer may have only some of
// them, and only some rows of a parameter, in a tensor that shares its memory.
// A parameter with several names appears under each of them.
//
// Throws c10::TypeError if the optimizer has any other type, also if it derives
// from one of these. Throws c10::ValueError if a parameter has no name.
// Threads: may be called from any thread while no other thread uses the
// optimizer.
OptimizerState optimizer_state(
    const torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, at::Tensor>& names);

namespace internal {

// Calls `change` with each tensor of the optimizer's state, and with the
// parameter to which it belongs. `change` may replace the tensor. Throws
// c10::TypeError for the types for which optimizer_state() does.
// Threads: as for load_optimizer_state().
void for_each_state_tensor(
    torch::optim::Optimizer& optimizer,
    const std::function<void(const at::Tensor& parameter, at::Tensor& tensor)>&
        change);

}  // namespace internal

// Restores a state of an optimizer of the same type. Each parameter gets the
// state under its name, copied to the parameter's device. Rows of a parameter
// get their part of the parameter's state. Each group gets the
// options that its parameters had when the state was saved. So a group may have
// other parameters than at that time, if all of them had the same options.
//
// Throws c10::ValueError, before anything changes, if anything does not fit:
// the type differs, a parameter has no name, the state lacks a name, the state
// has a name that no parameter has, a shape differs, or parameters of one group
// had different options. The text lists all problems, but at most 20 of a kind.
// An optimizer of rows may lack parameters of the state: those of which other
// processes have all rows. So may an optimizer without any tensor.
// Throws c10::TypeError if the optimizer's type is not one of those above.
// Threads: may be called from any thread while no other thread uses the
// optimizer.
void load_optimizer_state(
    torch::optim::Optimizer& optimizer, const OptimizerState& state,
    const torch::OrderedDict<std::string, at::Tensor>& names);

}  // namespace gpipe
