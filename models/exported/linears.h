// The nodes of a program that multiply by the weight of a linear module.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "models/exported/program.h"

namespace gpipe::exported {

// A product of a tensor and a weight, with or without a bias.
struct LinearNode {
  int node;            // in Program::nodes
  std::string module;  // the Python module that called it
  int weight;          // in Program::weights
  std::size_t input;   // the place of the tensor among the node's arguments
  // The weight has the size [inputs, outputs], as that of GPT-2's Conv1D. Else
  // it has the size [outputs, inputs].
  bool transposed;
};

// Returns the linear nodes, in the order of the program: linear, and addmm, mm
// and matmul by a weight, as in GPT-2's Conv1D. Those in the bodies of control
// flow are left out.
std::vector<LinearNode> find_linears(const Program& program);

// Returns the names of the modules that call a node, also in bodies.
std::set<std::string> module_names(const Program& program);

// Returns whether nodes of a module other than `module` read the weight, or one
// that is tied to it.
bool is_shared(const Program& program, int weight, const std::string& module);

}  // namespace gpipe::exported
