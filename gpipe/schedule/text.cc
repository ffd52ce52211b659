#include "gpipe/schedule/text.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/schedule/order.h"

namespace gpipe {
namespace {

// ---- CSV

constexpr std::string_view kOverlap = "OVERLAP_F_B";

constexpr std::array<std::string_view, 7> kNotComputation = {
    "SEND_F",  "RECV_F",  "SEND_B",     "RECV_B",
    "UNSHARD", "RESHARD", "REDUCE_GRAD"};

// The functions of <cctype> depend on the locale; these do not.
bool is_digit(char c) { return '0' <= c && c <= '9'; }
bool is_letter(char c) {
  return ('A' <= c && c <= 'Z') || ('a' <= c && c <= 'z') || c == '_';
}

// A parser of one line, which reads it from left to right.
class Line {
 public:
  Line(std::string_view text, int number) : text_(text), number_(number) {}

  std::vector<Action> read() {
    std::vector<Action> actions;
    for (bool more = true; more;) {
      skip_blanks();
      if (at_ < text_.size() && text_[at_] != ',') read_cell(actions);
      skip_blanks();
      more = take(",");
      if (!more && at_ < text_.size()) fail("a comma or the end of the line");
    }
    return actions;
  }

 private:
  void read_cell(std::vector<Action>& actions) {
    if (!take("(")) {
      actions.push_back(read_action());
      return;
    }
    const std::size_t first = actions.size();
    do {
      skip_blanks();
      actions.push_back(read_action());
      actions.back().fused_with_next = true;
      skip_blanks();
    } while (take(";"));
    actions.back().fused_with_next = false;
    const std::size_t size = actions.size() - first;
    if (size == 1) fail("';' and a second action");
    if (!take(")")) fail("';' or ')'");
    if (size == 2 &&
        internal::may_overlap(actions[first].kind, actions[first + 1].kind) &&
        !take(kOverlap)) {
      fail(kOverlap);
    }
  }

  Action read_action() {
    Action action;
    action.stage = read_number("a stage");
    action.kind = read_kind();
    action.microbatch = read_number("a micro-batch");
    return action;
  }

  int read_number(std::string_view what) {
    const char* begin = text_.data() + at_;
    const char* end = text_.data() + text_.size();
    // from_chars would accept a minus sign.
    if (begin == end || !is_digit(*begin)) {
      fail(std::string(what) + ", a number from 0");
    }
    int number = 0;
    const auto [stop, error] = std::from_chars(begin, end, number);
    if (error != std::errc()) {
      fail(std::string(what) + ", a number of at most " +
           std::to_string(std::numeric_limits<int>::max()));
    }
    at_ += stop - begin;
    return number;
  }

  ActionKind read_kind() {
    const std::string_view letters = word();
    const std::size_t kind = letters.size() == 1
                                 ? internal::kKindLetters.find(letters)
                                 : std::string_view::npos;
    if (kind != std::string_view::npos) {
      ++at_;
      return static_cast<ActionKind>(kind);
    }
    std::string expected = "F, B, I, W, R, O or L";
    if (std::ranges::count(kNotComputation, letters)) {
      expected +=
          " (a schedule lists only computation, and communication follows "
          "from it: leave this cell out)";
    }
    fail(expected);
  }

  // Returns the letters at the current position.
  std::string_view word() const {
    std::size_t end = at_;
    while (end < text_.size() && is_letter(text_[end])) ++end;
    return text_.substr(at_, end - at_);
  }

  bool take(std::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  // Returns the word, number or character at the current position, for errors.
  std::string found() const {
    if (at_ == text_.size()) return "the end of the line";
    std::size_t end = at_;
    while (end < text_.size() && is_digit(text_[end])) ++end;
    const std::size_t size =
        std::clamp<std::size_t>(std::max(end - at_, word().size()), 1, 20);
    const auto first = static_cast<unsigned char>(text_[at_]);
    if (first > ' ' && first < 127) {
      return "'" + std::string(text_.substr(at_, size)) + "'";
    }
    return absl::StrCat("the byte 0x", absl::Hex(first));
  }

  [[noreturn]] void fail(std::string_view expected) const {
    internal::refuse("line ", number_, ", column ", at_ + 1,
                     " of a schedule: expected ", expected, "; found ",
                     found());
  }

  std::string_view text_;
  int number_;
  std::size_t at_ = 0;
};

}  // namespace

std::string to_csv(const Schedule& schedule) {
  std::string csv;
  for (const auto& actions : schedule.ranks) {
    std::size_t first = 0;  // the block's first action
    for (std::size_t k = 0; k < actions.size(); ++k) {
      const bool begins = k == 0 || !actions[k - 1].fused_with_next;
      const bool ends = !actions[k].fused_with_next;
      if (begins) first = k;
      if (k > 0) csv += begins ? ',' : ';';
      if (begins && !ends) csv += '(';
      csv += to_string(actions[k]);
      if (begins || !ends) continue;
      csv += ')';
      if (k == first + 1 &&
          internal::may_overlap(actions[first].kind, actions[k].kind)) {
        csv += kOverlap;
      }
    }
    csv += '\n';
  }
  return csv;
}

Schedule parse_schedule(std::string_view csv) {
  if (csv.empty()) {
    internal::refuse(
        "line 1, column 1 of a schedule: expected the actions of rank 0; "
        "found the end of the text");
  }
  Schedule schedule;
  while (!csv.empty()) {
    const std::size_t end = std::min(csv.find('\n'), csv.size());
    std::string_view line = csv.substr(0, end);
    csv.remove_prefix(std::min(end + 1, csv.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const int number = static_cast<int>(schedule.ranks.size()) + 1;
    schedule.ranks.push_back(Line(line, number).read());
  }
  return schedule;
}

// ---- Grids

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
  std::string text = grid(schedule, ticks, shown_ranks, shown_ticks);
  if (shown_ranks.size() < all_ranks.size() ||
      shown_ticks.size() < all_ticks.size()) {
    absl::StrAppend(&text, "(ranks ", shown_ranks.begin, " to ",
                    shown_ranks.end - 1, " of ", all_ranks.end, ", ticks ",
                    shown_ticks.begin, " to ", shown_ticks.end - 1, " of ",
                    all_ticks.end, ")\n");
  }
  return text;
}

// ---- Differences

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
