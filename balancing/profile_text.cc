// The text form of what layers keep for backward.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "balancing/profile.h"
#include "gpipe/base/text.h"

namespace gpipe::balancing {

std::string kept_text(const Profile& profile, int most) {
  std::vector<std::vector<std::string>> rows = {{"layer", "keeps", "by"}};
  for (std::size_t k = 0; k < profile.memory.layers.size(); ++k) {
    std::vector<OperatorMemory> operators = profile.memory.layers[k].operators;
    if (operators.empty()) continue;
    double total = 0;
    for (const OperatorMemory& each : operators) {
      total += static_cast<double>(each.bytes);
    }
    std::ranges::stable_sort(operators, std::ranges::greater(),
                             &OperatorMemory::bytes);
    std::string by;
    for (std::size_t n = 0; n < operators.size(); ++n) {
      if (n > 0) by += ", ";
      if (static_cast<int>(n) == most) {
        by += "...";
        break;
      }
      by += operators[n].name + " " +
            bytes_text(static_cast<double>(operators[n].bytes));
    }
    rows.push_back({profile.names.at(k), bytes_text(total), by});
  }
  std::string text;
  for (std::string& line : align_columns(rows, "lrl")) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace gpipe::balancing
