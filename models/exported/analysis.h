// What nodes depend on, what they change, and what they do in eval mode.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "models/exported/program.h"

namespace gpipe::exported {

// Prepares a program for cutting. Moves the assignments of buffers, which the
// export puts at the end of the graph, to the place after the last use of the
// buffer, and other assignments to the place before the next use. Removes nodes
// without effect. Sets Node::pure, Node::needed and Node::passed.
//
// Adds to Program::problems if the program changes an input in place, if two
// weights overlap and one of them changes or is trained, and, if
// `concatenates`, if its outputs cannot be concatenated from those of
// micro-batches. `keep_random`:
// whether random operators stay although no output depends on them, so that
// later ones draw the same numbers as in Python. Takes time linear in the size
// of the program.
void analyze(Program& program, bool keep_random, bool concatenates = true);

enum class InEval {
  kRun,
  kSkip,    // no output depends on the node
  kPass,    // returns the argument Node::passed
  kRefuse,  // eval() throws: what Python computes is not in the program
};

// Returns what `node` does in eval(). `program` must be analyzed.
InEval in_eval(const Program& program, const Node& node);

// Returns why a node is refused: "is random and has no training flag".
std::string refusal_of(const Node& node);

// Returns a line for each node of the program that eval() refuses, with its
// Python module and source line.
std::vector<std::string> eval_problems(const Program& program);

// Returns a line for each node with an argument that is a floating-point dtype:
// the node, its Python module and its source line. Thread-safe.
std::vector<std::string> dtype_constants(const Program& program);

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

}  // namespace gpipe::exported
