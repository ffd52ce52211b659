#include "models/weights/names.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstddef>
#include <map>
#include <tuple>
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

// ---- Prefixes

namespace {

// Returns `name` without `prefix`, or the whole of it.
std::string without(const std::string& prefix, const std::string& name) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

}  // namespace

internal::NamePrefix::NamePrefix(const NameSet& names, const NameSet& in_file) {
  std::size_t most = 0;
  std::map<std::pair<std::string, bool>, std::size_t> counts;
  // Counts the prefixes of `longer` whose rest is in `shorter`.
  const auto count = [&](const NameSet& longer, const NameSet& shorter,
                         bool of_model) {
    for (const std::string& name : longer) {
      for (std::size_t dot = name.find('.'); dot != std::string::npos;
           dot = name.find('.', dot + 1)) {
        if (shorter.count(name.substr(dot + 1)) > 0) {
          ++counts[{name.substr(0, dot + 1), of_model}];
        }
      }
    }
  };
  for (const std::string& name : names) most += in_file.count(name);
  count(names, in_file, true);
  count(in_file, names, false);
  for (const auto& [prefix, found] : counts) {
    if (found > most) {
      most = found;
      std::tie(text_, of_model_) = prefix;
    } else if (found == most) {
      text_.clear();  // two are equally good
    }
  }
}

std::string internal::NamePrefix::in_file(const std::string& name) const {
  return of_model_ ? without(text_, name) : text_ + name;
}

std::string internal::NamePrefix::in_model(const std::string& name) const {
  return of_model_ ? text_ + name : without(text_, name);
}

}  // namespace gpipe
