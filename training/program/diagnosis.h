// A search for the source of NaN and infinite values.
#pragma once

#include <functional>
#include <string>

#include "gpipe/gpipe.h"
#include "training/generator_states.h"
#include "training/program/engine.h"
#include "training/program/layer_names.h"

namespace gpipe::train_program {

// Repeats a step to find the layer that first returned a NaN or an infinity.
// Restores `generators`, the random states at the beginning of the step, and
// clears all gradients. Then calls `again` with options that check every layer.
// Returns a text that names the layer, the micro-batch, and all parameters and
// gradients that are not finite.
//
// Afterwards the gradients are those of the repeated step. With several
// processes, training cannot continue if a layer was found.
std::string find_non_finite(
    Engine& engine, const LayerNames& names, const GeneratorStates& generators,
    const std::function<void(const TrainOptions&)>& again);

}  // namespace gpipe::train_program
