// What a training run needs to go on as if it had not been interrupted.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "training/generator_states.h"
#include "training/optimizer_state.h"
#include "weights/state_dict.h"

namespace gpipe {

// By names of parameters, so that it does not depend on the partitions or the
// processes. Nothing is copied: tensors may share the memory of the module and
// of the optimizer.
struct RunState {
  int64_t step = 0;  // how many have been made, at least 0
  StateDict model;   // state_dict(*module)
  std::optional<OptimizerState> optimizer;
  GeneratorStates generators;
  // Whatever else: "learning_rate", "epoch", "best accuracy", ... UTF-8.
  std::map<std::string, std::string> words;
};

}  // namespace gpipe
