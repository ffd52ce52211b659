#include "gpipe/simulation/draw/svg.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

#include "gpipe/base/svg.h"
#include "gpipe/base/text.h"
#include "gpipe/simulation/draw/kind_name.h"

namespace gpipe {
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

std::string number_of(const Timeline& timeline, std::size_t rank) {
  return std::to_string(timeline.first_rank + static_cast<int>(rank));
}

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
    const std::string name = "rank " + number_of(timeline, rank);
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
        to_string(action) + ": " + to_string(action.kind) + " of micro-batch " +
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
      // Ticks are up to the end; the factor is for rounding.
      for (int k = 0; k * step <= makespan_ * (1 + 1e-9); ++k) {
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
    for (const ActionKind kind : kAllKinds) {
      if (kinds_.count(kind) == 0) continue;
      const std::string name =
          std::string(1, internal::letter_of(kind)) + ": " + to_string(kind);
      text_ += svg_box(std::string(1, internal::letter_of(kind)), x, y_ + 10,
                       14, 14);
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

}  // namespace gpipe
