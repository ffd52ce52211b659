#include "gpipe/schedule/difference.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/text.h"

namespace gpipe {
namespace {

std::string count(std::size_t number, const char* one, const char* more) {
  return std::to_string(number) + " " + (number == 1 ? one : more);
}

std::string at(const std::vector<Action>& rank, std::size_t k) {
  if (k >= rank.size()) return "missing";
  return to_string(rank[k]) + (rank[k].fused_with_next ? " + next" : "");
}

}  // namespace

std::string describe_difference(const Schedule& a, const std::string& name_a,
                                const Schedule& b, const std::string& name_b) {
  const auto unequal = [&](std::size_t in_a, std::size_t in_b, const char* one,
                           const char* more) {
    return name_a + " has " + count(in_a, one, more) + " and " + name_b +
           " has " + count(in_b, one, more);
  };
  if (a.ranks.size() != b.ranks.size()) {
    return unequal(a.ranks.size(), b.ranks.size(), "rank", "ranks");
  }
  const int in_a = num_microbatches(a), in_b = num_microbatches(b);
  if (in_a != in_b) {
    return unequal(in_a, in_b, "micro-batch", "micro-batches");
  }
  for (std::size_t r = 0; r < a.ranks.size(); ++r) {
    const auto &of_a = a.ranks[r], &of_b = b.ranks[r];
    for (std::size_t k = 0; k < std::max(of_a.size(), of_b.size()); ++k) {
      if (at(of_a, k) == at(of_b, k)) continue;
      return "action " + std::to_string(k) + " of rank " + std::to_string(r) +
             " is " + at(of_a, k) + " in " + name_a + " and " + at(of_b, k) +
             " in " + name_b;
    }
  }
  return "";
}

}  // namespace gpipe
