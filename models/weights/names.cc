#include "models/weights/names.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <unordered_map>

namespace gpipe {

NameTable inverse(const NameTable& table) {
  NameTable result;
  result.reserve(table.size());
  for (const auto& [from, to] : table) result.emplace_back(to, from);
  return result;
}

StateDict rename(const StateDict& dict, const NameTable& table) {
  std::vector<std::string> twice;
  std::unordered_map<std::string, std::string> names;
  for (const auto& [from, to] : table) {
    if (!names.emplace(from, to).second) twice.push_back("'" + from + "'");
  }
  TORCH_CHECK_VALUE(twice.empty(), "a table of names has more than one for ",
                    c10::Join(", ", twice));

  StateDict result;
  std::unordered_map<std::string, std::string> olds;  // old names by new name
  for (const auto& item : dict) {
    const auto found = names.find(item.key());
    const std::string& name = found == names.end() ? item.key() : found->second;
    const auto [old, is_new] = olds.emplace(name, item.key());
    if (is_new) {
      result.insert(name, item.value());
    } else {
      twice.push_back("'" + old->second + "' and '" + item.key() +
                      "' would both be '" + name + "'");
    }
  }
  TORCH_CHECK_VALUE(twice.empty(), c10::Join("; ", twice));
  return result;
}

}  // namespace gpipe
