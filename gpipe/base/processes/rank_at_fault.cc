#include "gpipe/base/processes/rank_at_fault.h"

#include <charconv>
#include <system_error>

namespace gpipe {

int rank_at_fault(std::string_view line) {
  constexpr std::string_view kRank = "rank ";
  for (auto at = line.find(kRank); at != std::string_view::npos;
       at = line.find(kRank, at + 1)) {
    const char* const begin = line.data() + at + kRank.size();
    const char* const end = line.data() + line.size();
    int rank = -1;
    const auto [rest, error] = std::from_chars(begin, end, rank);
    if (error != std::errc() || rank < 0 || rest == end || *rest != ' ') {
      continue;
    }
    const std::string_view words(rest + 1, end - rest - 1);
    for (const std::string_view fault : kFaultWords) {
      if (words.substr(0, fault.size()) == fault) return rank;
    }
  }
  return -1;
}

}  // namespace gpipe
