#include "gpipe/simulation/merge.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "gpipe/base/text.h"

namespace gpipe {
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

}  // namespace gpipe
