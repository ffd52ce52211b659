#include "gpipe/simulation/timeline.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

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

}  // namespace gpipe
