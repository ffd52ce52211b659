#include "models/exported/layer_names.h"

#include <algorithm>
#include <map>
#include <set>

namespace gpipe::exported {

std::string layer_path(const Program& program, const LayerPlan& plan) {
  std::string path;
  for (const int k : plan.nodes) {
    const Node& node = program.nodes[k];
    if (node.pure || node.module.empty()) continue;
    const bool has_weight = std::any_of(
        node.reads.begin(), node.reads.end(),
        [&](ValueId each) { return program.values[each].weight >= 0; });
    if (has_weight) return node.module;
    if (path.empty()) path = node.module;
  }
  if (!path.empty()) return path;
  for (const int k : plan.nodes) {
    if (!program.nodes[k].pure) return operator_name(program.nodes[k]);
  }
  return "layer";
}

std::vector<std::string> layer_names(const std::vector<std::string>& paths) {
  std::map<std::string, int> next;  // the number of the next layer of a name
  std::set<std::string> taken;
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    std::string name = path;
    std::replace(name.begin(), name.end(), '.', '_');
    std::string unique = name;
    int& number = next.try_emplace(name, 2).first->second;
    while (unique.empty() || !taken.insert(unique).second) {
      unique = name + "_" + std::to_string(number++);
    }
    names.push_back(std::move(unique));
  }
  return names;
}

}  // namespace gpipe::exported
