// The state with which a training run resumes as if it had not stopped.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "models/weights/state_dict.h"
#include "training/generator_states.h"
#include "training/optimizer_state.h"

namespace gpipe {

// A run's state by names of parameters. It depends neither on the partitions
// nor on the processes. Nothing is copied: the tensors may share the memory of
// the module and of the optimizer.
struct RunState {
  int64_t step = 0;  // steps done so far, at least 0
  StateDict model;   // state_dict(*module)
  std::optional<OptimizerState> optimizer;
  GeneratorStates generators;
  // Other values, in UTF-8: "learning_rate", "epoch", "best accuracy", ...
  std::map<std::string, std::string> metadata;
};

}  // namespace gpipe
