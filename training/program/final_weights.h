// The weights at the end of a run, for other programs.
#pragma once

#include <string>

#include "training/program/engine.h"
#include "training/program/model_source.h"
#include "training/program/options.h"

namespace gpipe::train_program {

// Writes the weights into the folder Options::save_weights, see
// save_hugging_face() in models/weights/hugging_face.h. All processes call it
// at the same point, and each writes the files of its own layers. An exported
// program has Python's names, or those of Options::weights if that is a folder.
// Returns a line to print.
//
// Throws c10::Error on all processes if one of them cannot write.
std::string save_weights(const Options& options, Engine& engine,
                         ModelSource& source);

}  // namespace gpipe::train_program
