#include "gpipe/placement/names.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "gpipe/text/edit_distance.h"

namespace gpipe::placement {
namespace {

std::string lower(std::string text) {
  for (char& c : text) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

}  // namespace

std::vector<std::string> nearest(const std::string& name,
                                 std::vector<std::string> names,
                                 std::size_t count) {
  const std::string wanted = lower(name);
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (std::string& each : names) {
    ranked.emplace_back(edit_distance(wanted, lower(each)), std::move(each));
  }
  std::stable_sort(
      ranked.begin(), ranked.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  ranked.resize(std::min(count, ranked.size()));
  std::vector<std::string> result;
  for (auto& each : ranked) result.push_back(std::move(each.second));
  return result;
}

std::string nearest_text(const std::string& name,
                         const std::vector<std::string>& names) {
  const std::vector<std::string> near = nearest(name, names);
  std::string text;
  for (std::size_t k = 0; k < near.size(); ++k) {
    if (k > 0) text += k + 1 == near.size() ? " and " : ", ";
    text += "'" + near[k] + "'";
  }
  return text;
}

}  // namespace gpipe::placement
