#include "training/trace.h"

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/schedule.h"
#include "models/weights/files.h"

namespace gpipe {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string of_ranks(const Timeline& timeline) {
  const bool has_memory = !timeline.peak_bytes.empty();
  Rows rows{{"", "busy", "", "recompute", "", "idle", ""}};
  if (has_memory) rows[0].emplace_back("peak memory");
  for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
    double recompute = 0;
    for (const Span& span : timeline.ranks[r]) {
      if (span.action.kind == ActionKind::kRecompute) {
        recompute += span.end - span.start;
      }
    }
    const double idle = timeline.idle[r];
    auto& row = rows.emplace_back();
    row = {"rank " + std::to_string(timeline.first_rank + static_cast<int>(r))};
    for (const double part : {timeline.makespan - idle, recompute, idle}) {
      row.push_back(seconds_text(part));
      row.push_back(
          percent_text(timeline.makespan > 0 ? part / timeline.makespan : 0));
    }
    if (has_memory) row.push_back(bytes_text(timeline.peak_bytes[r]));
  }
  return columns_text(rows, "lr");
}

std::string of_links(const Timeline& timeline) {
  struct Sum {
    int count = 0;
    double bytes = 0, seconds = 0;
  };
  std::map<std::pair<int, int>, Sum> links;
  for (const Transfer& each : timeline.transfers) {
    Sum& sum = links[{each.from, each.to}];
    ++sum.count;
    sum.bytes += each.bytes;
    sum.seconds += each.sent - each.start;
  }
  Rows rows{{"", "copies", "bytes", "time"}};
  for (const auto& [link, sum] : links) {
    rows.push_back({"rank " + std::to_string(link.first) + " to " +
                        std::to_string(link.second),
                    std::to_string(sum.count),
                    sum.bytes > 0 ? bytes_text(sum.bytes) : "",
                    seconds_text(sum.seconds)});
  }
  return columns_text(rows, "lr");
}

// Returns a row per rank and direction with copies to or from its host.
std::string of_hosts(const Timeline& timeline) {
  Rows rows{{"", "copies", "time"}};
  for (std::size_t r = 0; r < timeline.host_copies.size(); ++r) {
    for (const ActionKind kind : {ActionKind::kOffload, ActionKind::kReload}) {
      int count = 0;
      double seconds = 0;
      for (const HostCopy& each : timeline.host_copies[r]) {
        if (each.action.kind != kind) continue;
        ++count;
        seconds += each.end - each.start;
      }
      if (count == 0) continue;
      rows.push_back(
          {"rank " + std::to_string(timeline.first_rank + static_cast<int>(r)) +
               (kind == ActionKind::kOffload ? " to host" : " from host"),
           std::to_string(count), seconds_text(seconds)});
    }
  }
  return columns_text(rows, "lr");
}

}  // namespace

std::string timeline_summary(const Timeline& timeline) {
  const std::size_t ranks = timeline.ranks.size();
  std::string text = "timeline: " + seconds_text(timeline.makespan) + ", " +
                     std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") +
                     ", bubble " + percent_text(timeline.bubble_fraction) +
                     "\n" + of_ranks(timeline) + "idle time:\n" +
                     to_text(idle_parts(timeline), timeline.first_rank);
  if (!timeline.transfers.empty()) {
    text += "transfers:\n" + of_links(timeline);
  }
  if (!timeline.host_copies.empty()) {
    text += "copies to and from the host:\n" + of_hosts(timeline);
  }
  return text;
}

std::string write_trace(const std::string& path, const Timeline& timeline) {
  return write_trace(path, {NamedTimeline{"pipeline", timeline}});
}

std::string write_trace(const std::string& path,
                        const std::vector<NamedTimeline>& timelines) {
  std::string summary;
  for (const auto& [name, timeline] : timelines) {
    if (timelines.size() > 1) summary += name + ", ";
    summary += timeline_summary(timeline);
  }
  const std::string trace = to_chrome_trace(timelines);
  internal::AtomicFile file(path);
  file.write(trace.data(), trace.size());
  file.commit();
  return summary;
}

}  // namespace gpipe
