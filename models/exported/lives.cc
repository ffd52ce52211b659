#include "models/exported/lives.h"

#include <algorithm>
#include <cstddef>

namespace gpipe::exported {
namespace {

constexpr int kLongLife = 32;  // nodes
constexpr int kLongShare = 4;  // one in this many nodes

}  // namespace

Lives::Lives(const Program& program)
    : program_(program),
      nodes_(static_cast<int>(program.nodes.size())),
      lives_(program.values.size()),
      computed_(program.nodes.size() + 1) {
  for (int k = 0; k < nodes_; ++k) {
    computed_[k + 1] = computed_[k] + !program.nodes[k].pure;
  }
  for (std::size_t k = 0; k < lives_.size(); ++k) {
    lives_[k].begin = program.values[k].producer;
  }
  for (const ValueId each : program.outputs) lives_[each].end = nodes_;
  // A pure node runs where its results are read, and so reads there.
  for (int k = nodes_; k-- > 0;) {
    const Node& node = program.nodes[k];
    const int at = node.pure ? last_read(node) : k;
    if (is_known_size(node)) continue;
    for (const ValueId each : node.reads) {
      lives_[each].end = std::max(lives_[each].end, at);
    }
  }
}

bool Lives::is_passed(ValueId id) const {
  const Value& value = program_.values[id];
  return value.origin == Origin::kInput ||
         (value.producer >= 0 && !program_.nodes[value.producer].pure);
}

bool Lives::is_long(ValueId value) const {
  const Life& life = lives_[value];
  const int length =
      computed_[std::max(life.end, 0)] - computed_[life.begin + 1];
  return length > kLongLife && length > computed_[nodes_] / kLongShare;
}

bool Lives::is_known_size(const Node& node) const {
  return node.pure && size_extent(program_, node) && is_passed(node.reads[0]);
}

int Lives::last_read(const Node& node) const {
  int last = -1;
  for_each_result(
      node, [&](ValueId each) { last = std::max(last, lives_[each].end); });
  return last;
}

}  // namespace gpipe::exported
