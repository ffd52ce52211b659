// Reads the calls of graphs: regions (torch.no_grad, torch.autocast,
// checkpointing) and control flow.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "models/exported/json.h"
#include "models/exported/program.h"

namespace gpipe::exported {

// The call of a region, which is a graph of its own in the file.
struct RegionCall {
  Region region;       // the state in which the nodes of the graph run
  const Json& graph;   // a Graph of the schema
  const Json& inputs;  // the list of the call's arguments
  std::size_t first;   // the place in `inputs` of the graph's first input
};

// Returns whether a target is a higher-order operator, which calls graphs.
bool is_higher_order(const std::string& target);

// Returns the control flow of such a target; nullopt if it is another operator.
std::optional<Control> find_control(const std::string& target);

// Returns the call in `json`, a Node of the schema with the higher-order
// operator `target`; nullopt if the operator is not a region. `outer`: the
// region of the node. The result refers to `json`. Throws c10::ValueError if
// the file is damaged.
std::optional<RegionCall> read_region(const Json& json,
                                      const std::string& target,
                                      const Region& outer);

}  // namespace gpipe::exported
