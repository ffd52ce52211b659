#include "gpipe/simulation/timeline.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"

namespace gpipe {
namespace {

void check_spans(const std::vector<Span>& spans, std::size_t rank) {
  double last = 0;
  for (const Span& span : spans) {
    if (!is_compute(span.action.kind)) {
      internal::refuse("the span of ", to_string(span.action), " on rank ",
                       rank,
                       " is a copy to or from the host: spans are of "
                       "computation; put it into host_copies");
    }
    // These comparisons are false for NaN, so NaN is refused.
    if (!(span.start >= last && span.end >= span.start &&
          std::isfinite(span.end))) {
      internal::refuse(
          "the span of ", to_string(span.action), " on rank ", rank,
          " is from ", span.start, " to ", span.end, ", after a start at ",
          last,
          ": spans must be finite, not end before they start, and be in the "
          "order of their starts, from 0");
    }
    last = span.start;
  }
}

// Returns the seconds that spans cover; where spans overlap, the time counts
// once.
double covered(const std::vector<Span>& spans) {
  double sum = 0, until = 0;
  for (const Span& span : spans) {
    if (span.end <= until) continue;
    sum += span.end - std::max(span.start, until);
    until = span.end;
  }
  return sum;
}

int peak_in_flight(const std::vector<Span>& spans) {
  const bool splits = std::ranges::any_of(spans, [](const Span& span) {
    return span.action.kind == ActionKind::kBackwardWeight;
  });
  int now = 0, peak = 0, ending = 0;
  for (const Span& span : spans) {
    const ActionKind kind = span.action.kind;
    if (kind == ActionKind::kForward) peak = std::max(peak, ++now);
    const bool last = kind == ActionKind::kBackward ||
                      kind == ActionKind::kBackwardWeight ||
                      (kind == ActionKind::kBackwardInput && !splits);
    if (last) ++ending;
    if (span.action.fused_with_next) continue;  // a block ends as one
    now -= ending;
    ending = 0;
  }
  return peak;
}

}  // namespace

Timeline timeline_of(std::vector<std::vector<Span>> ranks) {
  Timeline timeline;
  timeline.ranks = std::move(ranks);
  for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
    check_spans(timeline.ranks[r], r);
    for (const Span& span : timeline.ranks[r]) {
      timeline.makespan = std::max(timeline.makespan, span.end);
    }
  }
  double idle = 0, work = 0;
  for (const auto& spans : timeline.ranks) {
    const double works = covered(spans);
    timeline.idle.push_back(timeline.makespan - works);
    timeline.peak_in_flight.push_back(peak_in_flight(spans));
    idle += timeline.idle.back();
    work += works;
  }
  if (work > 0) {
    timeline.bubble_fraction =
        idle / (timeline.makespan * static_cast<double>(timeline.ranks.size()));
    timeline.bubble_ratio = idle / work;
  }
  return timeline;
}

std::vector<std::vector<Action>> internal::actions_of(
    const Timeline& timeline) {
  std::vector<std::vector<Action>> ranks;
  for (const auto& spans : timeline.ranks) {
    auto& actions = ranks.emplace_back();
    for (const Span& span : spans) actions.push_back(span.action);
  }
  ranks.resize(std::max(ranks.size(), timeline.host_copies.size()));
  for (std::size_t r = 0; r < timeline.host_copies.size(); ++r) {
    for (const HostCopy& copy : timeline.host_copies[r]) {
      ranks[r].push_back(copy.action);
    }
  }
  return ranks;
}

// ---- Timelines of several processes

namespace {

// Moves all times of a timeline to `by` seconds later.
void shift(Timeline& timeline, double by) {
  const auto shift_all = [by](auto& ranks) {
    for (auto& list : ranks) {
      for (auto& each : list) {
        each.start += by;
        each.end += by;
      }
    }
  };
  shift_all(timeline.ranks);
  shift_all(timeline.host_copies);
  shift_all(timeline.gradient_sums);
  for (Transfer& each : timeline.transfers) {
    each.start += by;
    each.sent += by;
    each.end += by;
  }
  for (auto& points : timeline.memory) {
    for (MemoryPoint& each : points) each.time += by;
  }
}

// Returns each copy once, in the order of starts.
std::vector<Transfer> transfers_of(const std::vector<Timeline>& parts) {
  // A receiver does not know whether the sender has split its backward.
  std::set<std::pair<int, int>> split;  // stage and micro-batch
  for (const Timeline& part : parts) {
    for (const auto& spans : part.ranks) {
      for (const Span& each : spans) {
        if (each.action.kind == ActionKind::kBackwardInput) {
          split.emplace(each.action.stage, each.action.microbatch);
        }
      }
    }
  }
  using Key = std::tuple<int, ActionKind, int, int, int>;
  std::map<Key, Transfer> found;
  for (const Timeline& part : parts) {
    const int end = part.first_rank + static_cast<int>(part.ranks.size());
    const auto is_here = [&](int rank) {
      return part.first_rank <= rank && rank < end;
    };
    for (Transfer each : part.transfers) {
      Action& action = each.action;
      if (action.kind == ActionKind::kBackward &&
          split.count({action.stage, action.microbatch}) > 0) {
        action.kind = ActionKind::kBackwardInput;
      }
      const auto [place, is_first] = found.try_emplace(
          Key{action.stage, action.kind, action.microbatch, each.from, each.to},
          each);
      Transfer& both = place->second;
      if (is_first) continue;
      if (is_here(each.from)) {
        both.start = each.start;
        both.sent = each.sent;
      }
      if (is_here(each.to)) both.end = each.end;
    }
  }
  std::vector<Transfer> transfers;
  for (auto& [key, each] : found) {
    each.sent = std::max(each.sent, each.start);
    each.end = std::max(each.end, each.sent);
    transfers.push_back(each);
  }
  std::ranges::stable_sort(transfers, {}, &Transfer::start);
  return transfers;
}

}  // namespace

Timeline merge_timelines(std::vector<Timeline> parts) {
  if (parts.empty()) internal::refuse("there are no timelines to merge");
  double began = parts[0].began;
  int next = parts[0].first_rank;
  for (const Timeline& part : parts) {
    if (part.first_rank != next) {
      internal::refuse("a timeline begins with rank ", part.first_rank,
                       ", but the one before ends with rank ", next - 1,
                       ": give the timelines in the order of their ranks");
    }
    next += static_cast<int>(part.ranks.size());
    began = std::min(began, part.began);
  }
  std::vector<std::vector<Span>> ranks;
  for (Timeline& part : parts) {
    shift(part, part.began - began);
    for (auto& spans : part.ranks) ranks.push_back(spans);
  }
  Timeline whole = timeline_of(std::move(ranks));
  whole.first_rank = parts[0].first_rank;
  whole.began = began;
  whole.transfers = transfers_of(parts);
  const auto all = [&](auto member) {
    return std::ranges::all_of(parts, [&](const Timeline& part) {
      return (part.*member).size() == part.ranks.size();
    });
  };
  const bool has_memory = all(&Timeline::memory) && all(&Timeline::peak_bytes);
  for (Timeline& part : parts) {
    for (std::size_t r = 0; has_memory && r < part.ranks.size(); ++r) {
      whole.memory.push_back(part.memory[r]);
      whole.peak_bytes.push_back(part.peak_bytes[r]);
    }
  }
  // Lists that some parts may lack.
  const auto join = [&](auto member) {
    if (std::ranges::all_of(parts, [&](const Timeline& part) {
          return (part.*member).empty();
        })) {
      return;
    }
    for (Timeline& part : parts) {
      (part.*member).resize(part.ranks.size());
      for (auto& list : part.*member) {
        (whole.*member).push_back(std::move(list));
      }
    }
  };
  join(&Timeline::host_copies);
  join(&Timeline::gradient_sums);
  return whole;
}

// ---- JSON

using Json = nlohmann::json;

// Return the members of each type, in the order in which they are in its list.
static auto members(Action& each) {
  return std::tie(each.stage, each.kind, each.microbatch, each.fused_with_next);
}
static auto members(Span& each) {
  return std::tie(each.action, each.start, each.end);
}
static auto members(Transfer& each) {
  return std::tie(each.action, each.from, each.to, each.start, each.sent,
                  each.end, each.bytes);
}
static auto members(HostCopy& each) {
  return std::tie(each.action, each.place, each.start, each.end);
}
static auto members(GradientSum& each) {
  return std::tie(each.start, each.end, each.bytes);
}
static auto members(MemoryPoint& each) {
  return std::tie(each.time, each.bytes);
}

// The conversions that nlohmann::json finds by their names.

static void from_json(const Json& json, ActionKind& kind) {
  const int number = json.get<int>();
  if (number < 0 || number >= static_cast<int>(internal::kActionKinds)) {
    internal::refuse("there is no kind of action ", number);
  }
  kind = static_cast<ActionKind>(number);
}

template <typename T>
requires requires(T& each) { members(each); }
static void to_json(Json& json, T each) {
  std::apply([&](auto&... member) { json = Json::array({member...}); },
             members(each));
}

template <typename T>
requires requires(T& each) { members(each); }
static void from_json(const Json& json, T& each) {
  std::apply(
      [&](auto&... member) {
        std::size_t k = 0;
        (json.at(k++).get_to(member), ...);
      },
      members(each));
}

// Calls visit(name, member) for the members that JSON has beside `ranks`.
template <typename AnyTimeline, typename Visit>
static void visit_members(AnyTimeline& timeline, const Visit& visit) {
  visit("first_rank", timeline.first_rank);
  visit("began", timeline.began);
  visit("transfers", timeline.transfers);
  visit("host_copies", timeline.host_copies);
  visit("gradient_sums", timeline.gradient_sums);
  visit("memory", timeline.memory);
  visit("peak_bytes", timeline.peak_bytes);
}

std::string to_json(const Timeline& timeline) {
  Json json = {{"ranks", timeline.ranks}};
  visit_members(timeline, [&](const char* name, const auto& member) {
    json[name] = member;
  });
  return json.dump();
}

Timeline parse_timeline(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    Timeline timeline =
        timeline_of(json.at("ranks").get<std::vector<std::vector<Span>>>());
    visit_members(timeline, [&](const char* name, auto& member) {
      json.at(name).get_to(member);
    });
    const std::size_t ranks = timeline.ranks.size();
    for (const auto& [name, size] :
         {std::pair("host_copies", timeline.host_copies.size()),
          std::pair("gradient_sums", timeline.gradient_sums.size()),
          std::pair("memory", timeline.memory.size()),
          std::pair("peak_bytes", timeline.peak_bytes.size())}) {
      if (size == 0 || size == ranks) continue;
      internal::refuse("this is no timeline: it has ", ranks, " ranks, and ",
                       name, " of ", size);
    }
    if (timeline.memory.size() != timeline.peak_bytes.size()) {
      internal::refuse("this is no timeline: it has memory of ",
                       timeline.memory.size(), " ranks, and peak_bytes of ",
                       timeline.peak_bytes.size());
    }
    if (timeline.first_rank < 0) {
      internal::refuse("this is no timeline: its first_rank is ",
                       timeline.first_rank);
    }
    for (std::size_t r = 0; r < timeline.host_copies.size(); ++r) {
      for (const HostCopy& copy : timeline.host_copies[r]) {
        if (!is_compute(copy.action.kind) &&
            copy.place <= timeline.ranks[r].size()) {
          continue;
        }
        internal::refuse("this is no timeline: the host copy ",
                         to_string(copy.action), " of rank ", r,
                         " is at place ", copy.place, " of ",
                         timeline.ranks[r].size());
      }
    }
    return timeline;
  } catch (const Json::exception& error) {
    internal::refuse("this is no timeline: ", error.what());
  }
}

}  // namespace gpipe
