#include "gpipe/simulation/draw/timeline_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/simulation/draw/kind_name.h"

namespace gpipe {
namespace {

// Puts `name` into the columns [begin, end), or `letter` if it is too long.
void draw(std::string* line, std::size_t begin, std::size_t end,
          std::string name, char letter) {
  if (begin >= end) return;
  // At least one dash separates two names.
  if (name.size() >= end - begin) name = letter;
  name.resize(end - begin, '-');
  line->replace(begin, name.size(), name);
}

// Returns the copies of a rank in one direction, which do not overlap.
std::vector<Span> copies_of(const std::vector<HostCopy>& copies,
                            ActionKind kind) {
  std::vector<Span> spans;
  for (const HostCopy& copy : copies) {
    if (copy.action.kind == kind) {
      spans.push_back({copy.action, copy.start, copy.end});
    }
  }
  return spans;
}

std::string line_of(const std::vector<Span>& spans, double makespan,
                    std::size_t columns) {
  std::string line(columns, '.');
  const auto column = [&](double time) {
    return static_cast<std::size_t>(
        std::lround(time / makespan * static_cast<double>(columns)));
  };
  for (std::size_t k = 0; k < spans.size(); ++k) {
    const Action& action = spans[k].action;
    std::string name = to_string(action);
    char letter = internal::letter_of(action.kind);
    double end = spans[k].end;
    const double start = spans[k].start;
    if (is_overlapped(action) && k + 1 < spans.size()) {
      ++k;
      name += "&" + to_string(spans[k].action);
      letter = '&';
      end = std::max(end, spans[k].end);
    }
    if (makespan > 0) draw(&line, column(start), column(end), name, letter);
  }
  return line;
}

}  // namespace

std::string to_text(const Timeline& timeline, int columns) {
  if (columns < 1) {
    internal::refuse("to_text: there are ", columns,
                     " columns, but at least 1 is needed");
  }
  const auto width = static_cast<std::size_t>(columns);
  const std::string rank = "rank ";
  const auto number_of = [&](std::size_t r) {
    return std::to_string(timeline.first_rank + static_cast<int>(r));
  };
  const std::size_t digits =
      number_of(std::max<std::size_t>(timeline.ranks.size(), 1) - 1).size();
  const std::string to_host = "to host", from_host = "from host";
  // The names of the lines are as wide as the longest of them.
  const std::size_t names =
      timeline.host_copies.empty()
          ? rank.size() + digits
          : std::max(rank.size() + digits, from_host.size());
  const auto padded = [names](std::string name) {
    return name.append(names - name.size(), ' ') + " |";
  };
  const std::string end = seconds_text(timeline.makespan);
  std::string text(names + 2, ' ');
  text += "0";
  if (width > end.size() + 1) text.append(width - end.size() - 1, ' ');
  text += (width > end.size() + 1 ? "" : " ") + end + "\n";
  for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
    const std::string number = number_of(r);
    text += padded(rank + std::string(digits - number.size(), ' ') + number) +
            line_of(timeline.ranks[r], timeline.makespan, width) + "|";
    if (timeline.makespan > 0) {
      text += " idle " + percent_text(timeline.idle[r] / timeline.makespan);
    }
    text += "\n";
    if (timeline.host_copies.empty()) continue;
    for (const auto& [name, kind] :
         {std::pair(to_host, ActionKind::kOffload),
          std::pair(from_host, ActionKind::kReload)}) {
      text += padded(name) +
              line_of(copies_of(timeline.host_copies[r], kind),
                      timeline.makespan, width) +
              "|\n";
    }
  }
  return text;
}

}  // namespace gpipe
