// Reads an exported program from its archive.
#pragma once

#include <cstdint>
#include <vector>

#include "models/exported/archive.h"
#include "models/exported/program.h"

namespace gpipe::exported {

// Returns the program of an archive, without the values of its weights. Regions
// (no_grad, autocast) are inlined. Reads what PyTorch 2.11 to 2.15 write: major
// version 8 of the schema and the dialect TRAINING.
//
// If the program is well-formed but cannot run, Program::problems says why, for
// example because LibTorch does not have one of its operators. Throws
// c10::ValueError if the file is damaged, or has another version or dialect.
//
// `outputs`: the places of the outputs to compute, counted from 0 in the
// exported signature; empty for all tensors among the outputs. Throws
// c10::ValueError if a place is no tensor output.
Program read_program(Archive& archive, const std::vector<int64_t>& outputs);

}  // namespace gpipe::exported
