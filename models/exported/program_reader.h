// Reads an exported program from its archive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/exported/archive.h"
#include "models/exported/program.h"
#include "models/exported/schema.h"

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

// The call of a region, which is a graph of its own in the file.
struct RegionCall {
  Region region;       // the state in which the nodes of the graph run
  const Json& graph;   // a Graph of the schema
  const Json& inputs;  // the list of the call's arguments
  std::size_t first;   // the place in `inputs` of the graph's first input
};

// Returns the call in `json`, a Node of the schema with the higher-order
// operator `target`; nullopt if the operator is not a region. `outer`: the
// region of the node. The result refers to `json`. Throws c10::ValueError if
// the file is damaged.
std::optional<RegionCall> read_region(const Json& json,
                                      const std::string& target,
                                      const Region& outer);

// Returns the innermost frame of a "stack_trace" that is not inside PyTorch, as
// one line: "File "model.py", line 12, in forward: return self.fc(x)". Returns
// the innermost frame of all if every one is inside, and "" for an empty trace.
// Long lines are cut. Thread-safe.
std::string source_line(const std::string& stack_trace);

// Returns the path of the innermost module of an "nn_module_stack", such as
// "layers.3.mlp"; "" for the whole model. Entries are separated by ";", each is
// "key,path,class". Thread-safe.
std::string module_path(const std::string& module_stack);

}  // namespace gpipe::exported
