// The place in the Python model that a node comes from.
#pragma once

#include <string>

namespace gpipe::exported {

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
