// What nodes depend on and what they change.
#pragma once

#include "models/exported/program.h"

namespace gpipe::exported {

// Prepares a program for cutting. Moves the assignments of buffers, which the
// export puts at the end of the graph, to the place after the last use of the
// buffer, and other assignments to the place before the next use. Removes nodes
// without effect. Sets Node::pure, Node::needed and Node::passed.
//
// Adds to Program::problems if the program changes an input in place, and, if
// `concatenates`, if its outputs cannot be concatenated from those of
// micro-batches. `keep_random`:
// whether random operators stay although no output depends on them, so that
// later ones draw the same numbers as in Python. Takes time linear in the size
// of the program.
void analyze(Program& program, bool keep_random, bool concatenates = true);

}  // namespace gpipe::exported
