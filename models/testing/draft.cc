#include "models/testing/draft.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "models/exported/analysis.h"

namespace gpipe::testing {

using exported::Node;
using exported::Origin;
using exported::Value;
using exported::ValueId;

Draft::Draft() { rows = program.symbols.parse("s0"); }

ValueId Draft::add(Origin origin) {
  Value value;
  value.name = "v" + std::to_string(program.values.size());
  value.origin = origin;
  value.memory = static_cast<ValueId>(program.values.size());
  value.sizes = {rows};
  if (origin == Origin::kParameter || origin == Origin::kBuffer) {
    value.weight = static_cast<int>(program.weights.size());
    program.weights.emplace_back();
    program.weights.back().name = value.name;
  }
  program.values.push_back(value);
  return value.memory;
}

ValueId Draft::input() {
  program.inputs.push_back(add(Origin::kInput));
  return program.inputs.back();
}

ValueId Draft::node(std::vector<ValueId> reads, std::vector<ValueId> writes) {
  Node node;
  node.target = "node " + std::to_string(program.nodes.size());
  node.reads = std::move(reads);
  node.writes = std::move(writes);
  const ValueId result = add(Origin::kNode);
  node.results.push_back({false, {result}});
  program.nodes.push_back(std::move(node));
  return result;
}

ValueId Draft::size_of(ValueId tensor) {
  const ValueId result = node({tensor});
  program.nodes.back().is_size = true;
  program.values[result].is_tensor = false;
  program.values[result].extent = rows;
  return result;
}

exported::Program& Draft::finish(ValueId output) {
  program.outputs = {output};
  analyze(program, /*keep_random=*/true);
  EXPECT_EQ(program.problems, std::vector<std::string>());
  return program;
}

}  // namespace gpipe::testing
