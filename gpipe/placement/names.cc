#include "gpipe/placement/names.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>

#include "gpipe/base/text/edit_distance.h"

namespace gpipe::placement {
namespace {

std::string lower(std::string text) {
  for (char& c : text) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

}  // namespace

std::string nearest_text(const std::string& name,
                         const std::vector<std::string>& names) {
  const std::string wanted = lower(name);
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (const std::string& each : names) {
    ranked.emplace_back(edit_distance(wanted, lower(each)), each);
  }
  std::ranges::stable_sort(ranked, {}, [](auto& each) { return each.first; });
  ranked.resize(std::min<std::size_t>(3, ranked.size()));
  std::string text;
  for (std::size_t k = 0; k < ranked.size(); ++k) {
    if (k > 0) text += k + 1 == ranked.size() ? " and " : ", ";
    text += "'" + ranked[k].second + "'";
  }
  return text;
}

}  // namespace gpipe::placement
