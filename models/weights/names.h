// Renames the tensors of a state dict.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/weights/state_dict.h"

namespace gpipe {

// Pairs of an old and a new name.
using NameTable = std::vector<std::pair<std::string, std::string>>;

// Returns `table` with old and new names exchanged. Thread-safe.
NameTable inverse(const NameTable& table);

// Returns `dict` with the names of `table` replaced, in the same order. Names
// that are not in the table stay. Entries of the table that are not in the dict
// are ignored, so that load_state_dict() reports what is missing or unexpected.
//
// Throws c10::ValueError if the table has an old name twice, or if two tensors
// would get the same name. The error lists the names. Thread-safe.
StateDict rename(const StateDict& dict, const NameTable& table);

}  // namespace gpipe
