// What an optimizer remembers, by the names of the parameters: it does not
// depend on their order, nor on which process has which of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weights/state_dict.h"

namespace torch::optim {
class Optimizer;
}

namespace gpipe {

// An optimizer's state by the names of parameters.
struct OptimizerState {
  // A parameter group's numbers: "lr", "momentum", "beta1", ... A bool is 0 or
  // 1.
  using Options = std::map<std::string, double>;

  // What is kept for one parameter.
  struct Parameter {
    std::size_t group = 0;                  // in `groups`
    std::map<std::string, int64_t> counts;  // "step"
    // "momentum_buffer", "exp_avg", ..., of the parameter's shape. None as long
    // as the parameter has had no gradient.
    std::map<std::string, at::Tensor> tensors;
  };

  std::string type;  // "AdamW"
  std::vector<Options> groups;
  std::map<std::string, Parameter> parameters;  // by name
};

// The state of an SGD, Adam, AdamW, RMSprop or Adagrad of torch::optim. Tensors
// are detached and share the optimizer's memory: they change with it.
//
// `names`: module->named_parameters(), of which the optimizer may have a part.
// A parameter with several names is there under each of them.
//
// Errors: c10::TypeError for any other optimizer, one derived from these too;
// c10::ValueError for parameters that have no name.
// Threads: any, while no other one uses the optimizer.
OptimizerState optimizer_state(
    const torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, at::Tensor>& names);

// Has the optimizer go on where another one of the same type was: its
// parameters get the state that is there under their names, on their device, in
// new memory, and each group the options that its parameters had. So a group
// need not have the parameters that it had, as long as they had the same
// options.
//
// Errors: one c10::ValueError for all that is wrong, before anything is
// changed: another type, parameters without a name, or whose names the state
// has not, names that are none of the optimizer's parameters, other shapes,
// groups that were apart with different options. A list ends after 20.
// c10::TypeError as above.
// Threads: any, while no other one uses the optimizer.
void load_optimizer_state(
    torch::optim::Optimizer& optimizer, const OptimizerState& state,
    const torch::OrderedDict<std::string, at::Tensor>& names);

}  // namespace gpipe
