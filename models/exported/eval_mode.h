// What the nodes of a program do in eval().
#pragma once

#include <string>
#include <vector>

#include "models/exported/program.h"

namespace gpipe::exported {

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

// Sets Node::passed of the nodes that multiply by the noise of stochastic
// depth, whose training flag the export loses. Recognized is what torchvision,
// timm and transformers do, where nothing else uses the noise:
//
//   x * empty(rows, 1, ...).bernoulli_(p).div_(p)
//   x.div(p) * floor(rand(rows, 1, ...) + p)
//
// The value that passes then has the memory of `x`, as in Python. A node is
// left as it is if a later change in place could be seen through both.
void find_stochastic_depth(Program& program);

}  // namespace gpipe::exported
