// Where numbers that are not finite come from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gpipe/gpipe.h"
#include "trainer/engine.h"
#include "trainer/layer_names.h"
#include "training/generator_states.h"

namespace gpipe::trainer {

// Makes a step again, from the random numbers that it began with: `again` is
// called with options that have every layer looked at. Says which layer was the
// first, in which micro-batch, and which parameters and gradients are not
// finite. Gradients are those of the new step afterwards; of several processes,
// none can go on if a layer was found.
std::string find_non_finite(
    Engine& engine, const LayerNames& names, const GeneratorStates& generators,
    const std::function<void(const TrainOptions&)>& again);

}  // namespace gpipe::trainer
