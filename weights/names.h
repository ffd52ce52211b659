// Other names for the tensors of a state dict.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "weights/state_dict.h"

namespace gpipe {

// Pairs of an old and a new name.
using NameTable = std::vector<std::pair<std::string, std::string>>;

// The table the other way round.
NameTable inverse(const NameTable& table);

// `dict`, in its order, under other names. Those that are not in the table stay
// as they are, and entries of the table that are not in the dict do nothing, so
// that load_state_dict() can say what is missing or unexpected.
//
// Errors: c10::ValueError if the table has an old name twice, or if two tensors
// would have the same name in the end; it lists them.
// Threads: pure function.
StateDict rename(const StateDict& dict, const NameTable& table);

}  // namespace gpipe
