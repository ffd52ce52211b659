#include "gpipe/simulation/draw/chrome_trace.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "gpipe/schedule/needs.h"
#include "gpipe/simulation/action_index.h"
#include "gpipe/simulation/draw/kind_name.h"
#include "gpipe/simulation/idle.h"

namespace gpipe {
namespace {

// JSON objects keep their members in the order in which they were added.
using Json = nlohmann::ordered_json;

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
      add_host_copies(name_of_rank(timeline, r), timeline.host_copies[r]);
    }
    for (std::size_t r = 0; r < timeline.gradient_sums.size(); ++r) {
      add_sums(name_of_rank(timeline, r), timeline.gradient_sums[r]);
    }
    for (std::size_t r = 0; r < timeline.memory.size(); ++r) {
      add_memory(name_of_rank(timeline, r), timeline.memory[r]);
    }
  }

  std::string take() {
    return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" +
           std::move(events_) + "\n]}\n";
  }

 private:
  // The track and the time of an action.
  struct Place {
    int track = 0;  // 0: the action is not in the timeline
    double start = 0, end = 0;
  };

  static std::string name_of_rank(const Timeline& timeline, std::size_t rank) {
    return "rank " +
           std::to_string(timeline.first_rank + static_cast<int>(rank));
  }

  int add_track(const std::string& name) {
    const int track = ++tracks_;
    const auto describe = [&](const char* what, const Json& arguments) {
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

  // Returns a complete event on a track, without arguments. `start`, `end`:
  // seconds.
  Json complete_event(const std::string& name, const char* category, int track,
                      double start, double end) const {
    return {{"ph", "X"},
            {"name", name},
            {"cat", category},
            {"pid", process_},
            {"tid", track},
            {"ts", microseconds(start)},
            {"dur", microseconds(end - start)}};
  }

  void add_actions(const Timeline& timeline) {
    internal::ActionTable<Place> places(timeline.ranks);
    const auto idle = idle_spans(timeline);
    for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
      const std::string name = name_of_rank(timeline, r);
      const int track = add_track(name);
      for (const IdleSpan& span : idle[r]) add_idle(span, track);
      int second_track = 0;
      bool second = false;
      for (const Span& span : timeline.ranks[r]) {
        if (second && second_track == 0) {
          second_track = add_track(name + ", overlapped");
        }
        const Place place = {second ? second_track : track, span.start,
                             span.end};
        places[span.action] = place;
        add_span(span.action, place);
        second = is_overlapped(span.action);
      }
    }
    for (const auto& spans : timeline.ranks) {
      for (const Span& span : spans) {
        for (const Action& need : internal::needs(span.action)) {
          const Place from = places.get(need);
          if (need.stage == span.action.stage || from.track == 0) continue;
          add_arrow(need, from, places.get(span.action));
        }
      }
    }
  }

  void add_span(const Action& action, const Place& place) {
    const char* const kind = to_string(action.kind);
    Json event = complete_event(to_string(action), kind, place.track,
                                place.start, place.end);
    event["args"] = {{"stage", action.stage},
                     {"kind", kind},
                     {"microbatch", action.microbatch}};
    write(event);
  }

  void add_idle(const IdleSpan& span, int track) {
    Json event = complete_event(to_string(span.cause), "idle", track,
                                span.start, span.end);
    event["cname"] = "grey";
    write(event);
  }

  // Adds an arrow from the output of `of` to the action that needs it. A viewer
  // attaches an end of an arrow to the event at that time on its track. So the
  // arrow begins in the middle of an event, since another one may begin at its
  // end.
  void add_arrow(const Action& of, const Place& from, const Place& to) {
    const char* name =
        of.kind == ActionKind::kForward ? "activation" : "gradient";
    ++arrows_;
    const auto end_of_arrow = [&](const char* phase, int track, double time) {
      return Json{{"ph", phase},
                  {"name", name},
                  {"cat", "flow"},
                  {"id", arrows_},
                  {"pid", process_},
                  {"tid", track},
                  {"ts", microseconds(time)}};
    };
    write(end_of_arrow("s", from.track, (from.start + from.end) / 2));
    Json head = end_of_arrow("f", to.track, to.start);
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
      Json event = complete_event("copy of " + to_string(transfer.action),
                                  "copy", track, transfer.start, transfer.sent);
      event["args"]["arrives_us"] = microseconds(transfer.end);
      if (transfer.bytes > 0) event["args"]["bytes"] = transfer.bytes;
      write(event);
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
      Json event = complete_event("sum " + std::to_string(k), "sum", track,
                                  sums[k].start, sums[k].end);
      event["args"] = {{"bytes", sums[k].bytes}};
      write(event);
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

  void write(const Json& event) {
    if (!events_.empty()) events_ += ",\n";
    events_ += event.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                          Json::error_handler_t::replace);
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
