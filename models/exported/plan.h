// Where a program is cut into layers, what each layer gets and gives, and the
// names of the layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/exported/program.h"

namespace gpipe::exported {

// A tensor, or a size, that passes from a layer to a later one, not through the
// layers in between. A value that several later layers use passes from one to
// the next: `hop` counts from 0.
struct Hop {
  ValueId value;
  int hop;
};

// A size, computed from a value that the layer gets: the size of dimension
// `dimension` of the tensor `from`, or the size `from` itself, divided by
// `divisor` and multiplied by `factor`. If `from` is kNoValue, the size is
// `factor`.
struct SizeSource {
  ValueId value;
  ValueId from;
  int dimension;
  int64_t divisor, factor;
};

// One layer.
struct LayerPlan {
  std::vector<ValueId> inputs, outputs;  // through the boundary
  std::vector<Hop> pops, stashes;        // skip tensors
  std::vector<ValueId> weights;          // parameters and buffers of its own
  std::vector<SizeSource> sizes;
  // Nodes to run, in order. Those of `constants` depend on sizes and constant
  // buffers only.
  std::vector<int> constants, nodes;
};

// Cuts `program`, which must be analyzed, before each node where at most
// `max_crossing` tensors are alive, and where a cut is correct:
// - some tensor crosses, and no number that is computed from tensors does;
// - no memory that crosses is changed in place later;
// - no slice of a larger tensor crosses if it has a gradient;
// - all uses of a buffer that changes, and of the statistics of one norm, are
//   on the same side.
// 0 gives one layer.
//
// Not counted are tensors that are alive over more than a quarter of the nodes
// and over more than 32 of them, such as masks and outer skips of a U-Net,
// parameters that several layers use, and sizes that no tensor which crosses
// has. They become skip tensors. Takes time n log n in the number of nodes.
std::vector<LayerPlan> plan_layers(const Program& program,
                                   int64_t max_crossing);

// Returns the number of tensors that cross at each place (before node k), and
// kNoCut where no cut is correct. For reports.
constexpr int kNoCut = -1;
std::vector<int> crossings(const Program& program);

// Returns the path of the Python module that a layer belongs to: that of its
// first node with a weight, else of its first node that is in a module. A layer
// of the outermost module has its operator's name.
std::string layer_path(const Program& program, const LayerPlan& plan);

// Returns the names of layers in a Sequential, where a name cannot contain a
// dot: "layers_3_mlp" for "layers.3.mlp". Further layers of the same module get
// "_2", "_3", and so on.
std::vector<std::string> layer_names(const std::vector<std::string>& paths);

}  // namespace gpipe::exported
