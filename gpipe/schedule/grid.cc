#include "gpipe/schedule/grid.h"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/schedule/order.h"

namespace gpipe {
namespace {

using Ticks = std::vector<std::vector<int64_t>>;

// The half-open range [begin, end).
struct Range {
  int64_t begin, end;

  int64_t size() const { return end - begin; }
  bool has(int64_t place) const { return begin <= place && place < end; }
};

// Returns `size` places of `all`, or all if there are fewer. `middle` is as
// near as possible to the middle of the result.
Range around(int64_t middle, int64_t size, Range all) {
  if (all.size() <= size) return all;
  const int64_t begin =
      std::clamp(middle - size / 2, all.begin, all.end - size);
  return {begin, begin + size};
}

// Returns the tick after the last action of a rank that can run.
int64_t end_of(const std::vector<int64_t>& ticks) {
  return ticks.empty() ? 0 : ticks.back() + 1;
}

// Returns the range of all ticks, including those at which ranks get stuck.
Range ticks_of(const Schedule& schedule, const Ticks& ticks) {
  int64_t end = 0;
  for (std::size_t rank = 0; rank < ticks.size(); ++rank) {
    const bool stuck = ticks[rank].size() < schedule.ranks[rank].size();
    end = std::max(end, end_of(ticks[rank]) + stuck);
  }
  return {0, end};
}

std::string cell(const std::vector<Action>& actions, std::size_t k) {
  const bool begins = k == 0 || !actions[k - 1].fused_with_next;
  const bool ends = !actions[k].fused_with_next;
  return (begins && !ends ? "(" : "") + to_string(actions[k]) +
         (ends && !begins ? ")" : "");
}

// Returns the cells of one rank for the ticks `shown`.
std::vector<std::string> row(const std::vector<Action>& actions,
                             const std::vector<int64_t>& ticks, Range shown) {
  std::vector<std::string> cells(shown.size(), ".");
  auto first = std::lower_bound(ticks.begin(), ticks.end(), shown.begin);
  for (auto tick = first; tick != ticks.end() && *tick < shown.end; ++tick) {
    cells[*tick - shown.begin] = cell(actions, tick - ticks.begin());
  }
  const int64_t end = end_of(ticks);
  if (ticks.size() < actions.size() && shown.has(end)) {
    cells[end - shown.begin] = to_string(actions[ticks.size()]) + '?';
  }
  return cells;
}

// Returns the rows as lines. A column is as wide as its widest cell. Lines have
// no trailing blanks.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::string text;
  const std::string sides(rows.front().size(), 'l');
  for (const std::string& line : align_columns(rows, sides, /*gap=*/1)) {
    text += line.substr(1, line.find_last_not_of(' ')) + '\n';
  }
  return text;
}

std::string grid(const Schedule& schedule, const Ticks& ticks,
                 Range shown_ranks, Range shown_ticks) {
  std::vector<std::vector<std::string>> rows(1, {"tick "});
  for (int64_t tick = shown_ticks.begin; tick < shown_ticks.end; ++tick) {
    rows[0].push_back(std::to_string(tick));
  }
  for (int64_t rank = shown_ranks.begin; rank < shown_ranks.end; ++rank) {
    auto cells = row(schedule.ranks[rank], ticks[rank], shown_ticks);
    cells.insert(cells.begin(), "rank " + std::to_string(rank) + ' ');
    rows.push_back(std::move(cells));
  }
  return aligned(rows);
}

}  // namespace

std::string to_grid(const Schedule& schedule) {
  const Ticks ticks = start_ticks(schedule);
  const auto ranks = std::ssize(schedule.ranks);
  return grid(schedule, ticks, {0, ranks}, ticks_of(schedule, ticks));
}

std::string grid_around(const Schedule& schedule, std::size_t rank,
                        std::size_t position) {
  constexpr int64_t kTicks = 16, kRanks = 8;
  const Ticks ticks = start_ticks(schedule);
  const int64_t tick = position < ticks[rank].size() ? ticks[rank][position]
                                                     : end_of(ticks[rank]);
  const Range all_ranks = {0, std::ssize(ticks)};
  const Range all_ticks = ticks_of(schedule, ticks);
  const Range shown_ranks =
      around(static_cast<int64_t>(rank), kRanks, all_ranks);
  const Range shown_ticks = around(tick, kTicks, all_ticks);
  std::ostringstream text;
  text << grid(schedule, ticks, shown_ranks, shown_ticks);
  if (shown_ranks.size() < all_ranks.size() ||
      shown_ticks.size() < all_ticks.size()) {
    text << "(ranks " << shown_ranks.begin << " to " << shown_ranks.end - 1
         << " of " << all_ranks.end << ", ticks " << shown_ticks.begin << " to "
         << shown_ticks.end - 1 << " of " << all_ticks.end << ")\n";
  }
  return text.str();
}

}  // namespace gpipe
