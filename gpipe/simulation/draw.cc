#include "gpipe/simulation/draw.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "gpipe/base/svg.h"
#include "gpipe/base/text.h"
#include "gpipe/schedule/order.h"
#include "gpipe/simulation/bottlenecks.h"

namespace gpipe {
namespace {

// All kinds of actions with their names, in the order of legends.
constexpr std::pair<ActionKind, const char*> kKindNames[] = {
    {ActionKind::kForward, "forward"},
    {ActionKind::kRecompute, "recompute"},
    {ActionKind::kBackward, "backward"},
    {ActionKind::kBackwardInput, "input backward"},
    {ActionKind::kBackwardWeight, "weight backward"},
    {ActionKind::kOffload, "copy to the host"},
    {ActionKind::kReload, "copy from the host"}};

const char* name_of(ActionKind kind) {
  return std::ranges::find(kKindNames, kind,
                           &std::pair<ActionKind, const char*>::first)
      ->second;
}

std::string number_of(const Timeline& timeline, std::size_t rank) {
  return std::to_string(timeline.first_rank + static_cast<int>(rank));
}

std::string rank_name(const Timeline& timeline, std::size_t rank) {
  return "rank " + number_of(timeline, rank);
}

// ---- Text

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
    // A copy to the host may end after the last action.
    return std::min(columns,
                    static_cast<std::size_t>(std::lround(
                        time / makespan * static_cast<double>(columns))));
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
  const std::size_t digits =
      number_of(timeline, std::max<std::size_t>(timeline.ranks.size(), 1) - 1)
          .size();
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
    const std::string number = number_of(timeline, r);
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

// ---- SVG pictures

namespace {

// Sizes in pixels.
constexpr double kLeft = 70, kRight = 130;  // margins: names, idle times
constexpr double kLane = 28, kGap = 4, kHostStrip = 16;
constexpr double kTitle = 30, kAxis = 26, kMemory = 36, kLegend = 34;
constexpr double kLetter = 7.2;  // largest width of a letter

// The colours are distinguishable with colour blindness (after Okabe and Ito),
// and light enough for black letters.
constexpr char kStyle[] =
    ".name { text-anchor: middle; pointer-events: none }\n"
    ".tick { stroke: #888; stroke-width: 1 }\n"
    ".box { stroke: #fff; stroke-width: 0.5 }\n"
    ".F { fill: #74b9ee } .B { fill: #4cc3a0 } .I { fill: #f3e36b }\n"
    ".W { fill: #f0b04c } .R { fill: #d9a3c3 }\n"
    ".O { fill: #e58a5b } .L { fill: #b7a6e0 }\n"
    ".copy { stroke: #666; stroke-width: 0.7; opacity: 0.6 }\n"
    ".memory { fill: #b9c4d6; stroke: #54678a; stroke-width: 1 }\n";

// The pattern of idle time.
constexpr char kIdle[] =
    "<defs><pattern id=\"idle\" width=\"6\" height=\"6\" "
    "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
    "<rect width=\"6\" height=\"6\" fill=\"#f4f4f4\"/>"
    "<line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" stroke=\"#ddd\" "
    "stroke-width=\"2\"/></pattern></defs>\n";

// An SVG document of timelines.
class Picture {
 public:
  Picture(const std::vector<NamedTimeline>& timelines, int width)
      : plot_(width - kLeft - kRight) {
    for (const auto& [name, timeline] : timelines) {
      makespan_ = std::max(makespan_, timeline.makespan);
      for (const double bytes : timeline.peak_bytes) {
        bytes_ = std::max(bytes_, bytes);
      }
    }
    for (const auto& [name, timeline] : timelines) draw(name, timeline);
    draw_legend();
    text_ = svg_document(width, y_, kStyle, kIdle + std::move(text_));
  }

  std::string take() { return std::move(text_); }

 private:
  double x_of(double time) const {
    return kLeft + (makespan_ > 0 ? time / makespan_ * plot_ : 0);
  }

  double middle_of(int rank) const {
    return lanes_ + rank * lane_distance_ + kLane / 2;
  }

  void draw(const std::string& name, const Timeline& timeline) {
    std::string title = name.empty() ? "" : name + ": ";
    title += seconds_text(timeline.makespan) + ", bubble " +
             percent_text(timeline.bubble_fraction);
    write_text(kLeft, y_ + kTitle - 10, "title", title);
    y_ += kTitle;
    lanes_ = y_;
    const bool has_host_copies = !timeline.host_copies.empty();
    lane_distance_ = kLane + kGap + (has_host_copies ? kHostStrip : 0);
    for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
      draw_lane(timeline, r);
      if (has_host_copies) draw_host_copies(timeline.host_copies[r]);
      y_ += lane_distance_;
    }
    for (const Transfer& transfer : timeline.transfers) {
      const auto is_here = [&](int rank) {
        return rank < static_cast<int>(timeline.ranks.size());
      };
      // A timeline of one process has only one end of a copy.
      if (timeline.first_rank == 0 && is_here(transfer.from) &&
          is_here(transfer.to)) {
        draw_copy(transfer);
      }
    }
    draw_axis();
    for (std::size_t r = 0; r < timeline.memory.size(); ++r) {
      draw_memory(timeline, r);
      y_ += kMemory + kGap;
    }
  }

  void draw_lane(const Timeline& timeline, std::size_t rank) {
    const auto& spans = timeline.ranks[rank];
    const std::string name = rank_name(timeline, rank);
    write_text(kLeft - 8, y_ + kLane / 2 + 4, "right", name);
    std::string idle = "idle " + seconds_text(timeline.idle[rank]);
    if (timeline.makespan > 0) {
      idle +=
          " (" + percent_text(timeline.idle[rank] / timeline.makespan) + ")";
    }
    text_ += svg_box("", kLeft, y_, x_of(timeline.makespan) - kLeft, kLane,
                     "fill=\"url(#idle)\"", name + ": " + idle);
    write_text(kLeft + plot_ + 6, y_ + kLane / 2 + 4, "", idle);

    std::set<int> stages;
    for (const Span& span : spans) stages.insert(span.action.stage);
    bool second = false;  // whether the span is the second of a pair
    for (const Span& span : spans) {
      const bool first = is_overlapped(span.action);
      const double height = first || second ? kLane / 2 : kLane;
      const auto nth =
          std::distance(stages.begin(), stages.find(span.action.stage));
      draw_box(span, y_ + (second ? kLane / 2 : 0), height,
               1 - 0.5 * static_cast<double>(nth) /
                       static_cast<double>(stages.size()));
      second = first;
    }
  }

  void draw_host_copies(const std::vector<HostCopy>& copies) {
    for (const HostCopy& copy : copies) {
      const bool away = copy.action.kind == ActionKind::kOffload;
      draw_box({copy.action, copy.start, copy.end},
               y_ + kLane + (away ? 0 : kHostStrip / 2), kHostStrip / 2,
               /*opacity=*/1);
    }
  }

  void draw_box(const Span& span, double y, double height, double opacity) {
    const Action& action = span.action;
    const char letter = internal::letter_of(action.kind);
    kinds_.insert(action.kind);
    const double x = x_of(span.start), width = x_of(span.end) - x;
    // A white box below hides the hatching.
    if (opacity < 1) text_ += svg_box("", x, y, width, height, "fill=\"#fff\"");
    text_ += svg_box(
        std::string("box ") + letter, x, y, width, height,
        opacity < 1 ? "fill-opacity=\"" + svg_number(opacity) + "\"" : "",
        to_string(action) + ": " + name_of(action.kind) + " of micro-batch " +
            std::to_string(action.microbatch) + ", stage " +
            std::to_string(action.stage) + "\n" + seconds_text(span.start) +
            " to " + seconds_text(span.end) + ", takes " +
            seconds_text(span.end - span.start));
    const std::string name = to_string(action);
    const bool has_room = width >= kLetter * static_cast<double>(name.size()) &&
                          height >= kLane / 2;
    if (!has_room) return;
    write_text(x + width / 2, y + height / 2 + 4, "name", name);
  }

  void draw_copy(const Transfer& transfer) {
    text_ += svg_line("copy", x_of(transfer.start), middle_of(transfer.from),
                      x_of(transfer.end), middle_of(transfer.to),
                      "copy of " + to_string(transfer.action) + "\n" +
                          seconds_text(transfer.start) + " to " +
                          seconds_text(transfer.end));
  }

  void draw_axis() {
    if (makespan_ > 0) {
      const double step = tick_step(makespan_, 8);
      // Ticks are up to the end; the part of a step is for rounding.
      for (int k = 0; k <= makespan_ / step + 1e-8; ++k) {
        const double x = x_of(k * step);
        text_ += svg_line("tick", x, y_, x, y_ + 5);
        write_text(x, y_ + 17, "name", k == 0 ? "0" : seconds_text(k * step));
      }
    }
    y_ += kAxis;
  }

  void draw_memory(const Timeline& timeline, std::size_t rank) {
    const double bottom = y_ + kMemory;
    const auto height = [&](double bytes) {
      return bottom - (bytes_ > 0 ? bytes / bytes_ * kMemory : 0);
    };
    std::string path = "M" + svg_number(kLeft) + " " + svg_number(bottom);
    for (const MemoryPoint& point : timeline.memory[rank]) {
      path += "H" + svg_number(x_of(point.time)) + "V" +
              svg_number(height(point.bytes));
    }
    path += "H" + svg_number(x_of(timeline.makespan)) + "V" +
            svg_number(bottom) + "Z";
    const std::string peak = "peak " + bytes_text(timeline.peak_bytes[rank]);
    text_ += "<path class=\"memory\" d=\"" + path +
             "\"><title>memory of rank " + number_of(timeline, rank) + ": " +
             peak + "</title></path>\n";
    write_text(kLeft - 8, y_ + kMemory / 2 + 4, "right",
               "bytes " + number_of(timeline, rank));
    write_text(kLeft + plot_ + 6, y_ + kMemory / 2 + 4, "", peak);
  }

  void draw_legend() {
    double x = kLeft;
    for (const auto& [kind, kind_name] : kKindNames) {
      if (kinds_.count(kind) == 0) continue;
      const std::string letter(1, internal::letter_of(kind));
      const std::string name = letter + ": " + kind_name;
      text_ += svg_box(letter, x, y_ + 10, 14, 14);
      write_text(x + 20, y_ + 21, "", name);
      x += 40 + kLetter * static_cast<double>(name.size());
    }
    y_ += kLegend;
  }

  void write_text(double x, double y, const std::string& style,
                  const std::string& text) {
    text_ += svg_text(x, y, style, text);
  }

  const double plot_;                // width of the lanes
  double makespan_ = 0, bytes_ = 0;  // the largest of all timelines
  double y_ = 0;                     // height of the picture so far
  double lane_distance_ = 0;         // from a lane to the next one
  double lanes_ = 0;                 // y of the timeline's first lane
  std::set<ActionKind> kinds_;       // kinds of the drawn actions
  std::string text_;
};

}  // namespace

std::string to_svg(const std::vector<NamedTimeline>& timelines, int width) {
  if (width < 400) {
    internal::refuse("to_svg: the width is ", width,
                     " pixels, but must be 400 at least");
  }
  return Picture(timelines, width).take();
}

std::string to_svg(const Timeline& timeline, int width) {
  return to_svg({NamedTimeline{"", timeline}}, width);
}

// ---- Traces

namespace {

// JSON objects keep their members in the order in which they were added.
using OrderedJson = nlohmann::ordered_json;

double microseconds(double seconds) { return 1e6 * seconds; }

// The events of a trace, as text.
class Trace {
 public:
  void add(const NamedTimeline& named) {
    process_ = ++processes_;
    tracks_ = 0;
    const Timeline& timeline = named.timeline;
    write({{"ph", "M"},
           {"name", "process_name"},
           {"pid", process_},
           {"args", {{"name", named.name}}}});
    add_actions(timeline);
    add_transfers(timeline);
    for (std::size_t r = 0; r < timeline.host_copies.size(); ++r) {
      add_host_copies(rank_name(timeline, r), timeline.host_copies[r]);
    }
    for (std::size_t r = 0; r < timeline.gradient_sums.size(); ++r) {
      add_sums(rank_name(timeline, r), timeline.gradient_sums[r]);
    }
    for (std::size_t r = 0; r < timeline.memory.size(); ++r) {
      add_memory(rank_name(timeline, r), timeline.memory[r]);
    }
  }

  std::string take() {
    return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" +
           std::move(events_) + "\n]}\n";
  }

 private:
  // The track and the time of an action.
  struct TrackSpan {
    int track = 0;  // 0: the action is not in the timeline
    double start = 0, end = 0;
  };

  int add_track(const std::string& name) {
    const int track = ++tracks_;
    const auto describe = [&](const char* what, const OrderedJson& arguments) {
      write({{"ph", "M"},
             {"name", what},
             {"pid", process_},
             {"tid", track},
             {"args", arguments}});
    };
    describe("thread_name", {{"name", name}});
    describe("thread_sort_index", {{"sort_index", track}});
    return track;
  }

  // Adds a complete event. `more`: its further members.
  void add_event(const std::string& name, const char* category,
                 const TrackSpan& place, const OrderedJson& more) {
    OrderedJson event = {{"ph", "X"},
                         {"name", name},
                         {"cat", category},
                         {"pid", process_},
                         {"tid", place.track},
                         {"ts", microseconds(place.start)},
                         {"dur", microseconds(place.end - place.start)}};
    event.update(more);
    write(event);
  }

  void add_actions(const Timeline& timeline) {
    internal::ActionTable<TrackSpan> places(timeline.ranks);
    const auto idle = idle_spans(timeline);
    for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
      const std::string name = rank_name(timeline, r);
      const int track = add_track(name);
      for (const IdleSpan& span : idle[r]) {
        add_event(to_string(span.cause), "idle", {track, span.start, span.end},
                  {{"cname", "grey"}});
      }
      int second_track = 0;
      bool second = false;
      for (const Span& span : timeline.ranks[r]) {
        if (second && second_track == 0) {
          second_track = add_track(name + ", overlapped");
        }
        const TrackSpan place = {second ? second_track : track, span.start,
                                 span.end};
        places[span.action] = place;
        add_span(span.action, place);
        second = is_overlapped(span.action);
      }
    }
    for (const auto& spans : timeline.ranks) {
      for (const Span& span : spans) {
        for (const Action& need : internal::needs(span.action)) {
          const TrackSpan from = places.get(need);
          if (need.stage == span.action.stage || from.track == 0) continue;
          add_arrow(need, from, places.get(span.action));
        }
      }
    }
  }

  void add_span(const Action& action, const TrackSpan& place) {
    const char* const kind = name_of(action.kind);
    add_event(to_string(action), kind, place,
              {{"args",
                {{"stage", action.stage},
                 {"kind", kind},
                 {"microbatch", action.microbatch}}}});
  }

  // Adds an arrow from the output of `of` to the action that needs it. A viewer
  // attaches an end of an arrow to the event at that time on its track. So the
  // arrow begins in the middle of an event, since another one may begin at its
  // end.
  void add_arrow(const Action& of, const TrackSpan& from, const TrackSpan& to) {
    const char* name =
        of.kind == ActionKind::kForward ? "activation" : "gradient";
    ++arrows_;
    const auto end_of_arrow = [&](const char* phase, int track, double time) {
      return OrderedJson{{"ph", phase},
                         {"name", name},
                         {"cat", "flow"},
                         {"id", arrows_},
                         {"pid", process_},
                         {"tid", track},
                         {"ts", microseconds(time)}};
    };
    write(end_of_arrow("s", from.track, (from.start + from.end) / 2));
    OrderedJson head = end_of_arrow("f", to.track, to.start);
    head["bp"] = "e";
    write(head);
  }

  // Adds the copies. A copy's event is the time in which it occupies the link.
  // Its arrival is an argument, since the latencies of copies may overlap.
  void add_transfers(const Timeline& timeline) {
    std::map<std::pair<int, int>, int> tracks;
    for (const Transfer& transfer : timeline.transfers) {
      int& track = tracks[{transfer.from, transfer.to}];
      if (track == 0) {
        track = add_track("link " + std::to_string(transfer.from) + " to " +
                          std::to_string(transfer.to));
      }
      OrderedJson arguments = {{"arrives_us", microseconds(transfer.end)}};
      if (transfer.bytes > 0) arguments["bytes"] = transfer.bytes;
      add_event("copy of " + to_string(transfer.action), "copy",
                {track, transfer.start, transfer.sent}, {{"args", arguments}});
    }
  }

  void add_host_copies(const std::string& rank,
                       const std::vector<HostCopy>& copies) {
    int to_host = 0, from_host = 0;
    for (const HostCopy& copy : copies) {
      const bool away = copy.action.kind == ActionKind::kOffload;
      int& track = away ? to_host : from_host;
      if (track == 0) {
        track = add_track(rank + (away ? " to host" : " from host"));
      }
      add_span(copy.action, {track, copy.start, copy.end});
    }
  }

  void add_sums(const std::string& rank, const std::vector<GradientSum>& sums) {
    if (sums.empty()) return;
    const int track = add_track(rank + ", sums over replicas");
    for (std::size_t k = 0; k < sums.size(); ++k) {
      add_event("sum " + std::to_string(k), "sum",
                {track, sums[k].start, sums[k].end},
                {{"args", {{"bytes", sums[k].bytes}}}});
    }
  }

  void add_memory(const std::string& rank,
                  const std::vector<MemoryPoint>& points) {
    const std::string name = "memory of " + rank;
    for (const MemoryPoint& point : points) {
      write({{"ph", "C"},
             {"name", name},
             {"pid", process_},
             {"ts", microseconds(point.time)},
             {"args", {{"bytes", point.bytes}}}});
    }
  }

  void write(const OrderedJson& event) {
    if (!events_.empty()) events_ += ",\n";
    events_ += event.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                          OrderedJson::error_handler_t::replace);
  }

  std::string events_;
  int processes_ = 0, process_ = 0, tracks_ = 0;
  int64_t arrows_ = 0;
};

}  // namespace

std::string to_chrome_trace(const std::vector<NamedTimeline>& timelines) {
  Trace trace;
  for (const NamedTimeline& named : timelines) trace.add(named);
  return trace.take();
}

std::string to_chrome_trace(const Timeline& timeline) {
  return to_chrome_trace({NamedTimeline{"pipeline", timeline}});
}

}  // namespace gpipe
