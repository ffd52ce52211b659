#include "gpipe/schedule/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace gpipe {
namespace {

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
    std::ostringstream byte;
    byte << "the byte 0x" << std::hex << static_cast<int>(first);
    return byte.str();
  }

  [[noreturn]] void fail(std::string_view expected) const {
    std::ostringstream message;
    message << "line " << number_ << ", column " << at_ + 1 << " of a schedule"
            << ": expected " << expected << "; found " << found();
    throw std::invalid_argument(message.str());
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
    throw std::invalid_argument(
        "line 1, column 1 of a schedule: expected the actions of rank 0; "
        "found the end of the text");
  }
  Schedule schedule;
  while (!csv.empty()) {
    const std::size_t end = std::min(csv.find('\n'), csv.size());
    std::string_view line = csv.substr(0, end);
    csv.remove_prefix(std::min(end + 1, csv.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const int number = static_cast<int>(schedule.ranks.size()) + 1;
    schedule.ranks.push_back(Line(line, number).read());
  }
  return schedule;
}

}  // namespace gpipe
