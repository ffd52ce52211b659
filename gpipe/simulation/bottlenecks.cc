#include "gpipe/simulation/bottlenecks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/schedule/order.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/simulate.h"

namespace gpipe {

// ---- The critical path

namespace {

// A search for the critical path, from the last action back.
class Tracer {
 public:
  explicit Tracer(const Timeline& timeline)
      : timeline_(timeline),
        found_(internal::actions_of(timeline)),
        before_(timeline.transfers.size(), -1) {
    for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
      const auto& spans = timeline.ranks[r];
      for (std::size_t k = 0; k < spans.size(); ++k) {
        found_[spans[k].action] = {static_cast<int>(r), k};
      }
    }
    for (std::size_t r = 0; r < timeline.host_copies.size(); ++r) {
      find_host_copies(r);
    }
    std::map<std::pair<int, int>, int> last;
    for (std::size_t t = 0; t < timeline.transfers.size(); ++t) {
      const Transfer& transfer = timeline.transfers[t];
      arrivals_[{transfer.action.kind == ActionKind::kForward,
                 transfer.action.microbatch, transfer.to}]
          .push_back(static_cast<int>(t));
      const auto [entry, is_first] =
          last.emplace(std::pair(transfer.from, transfer.to), t);
      if (!is_first) before_[t] = std::exchange(entry->second, t);
    }
  }

  std::vector<CriticalStep> path() {
    auto found = last();
    while (found) {
      const int rank = timeline_.first_rank + found->rank;
      if (found->is_host_copy) {
        const HostCopy& copy =
            timeline_.host_copies[found->rank][found->position];
        add({copy.action, rank, rank, copy.start, copy.end});
        found = before_host_copy(*found);
        continue;
      }
      const Span& span = span_of(*found);
      add({span.action, rank, rank, span.start, span.end});
      found = before(*found);
    }
    std::reverse(path_.begin(), path_.end());
    return std::move(path_);
  }

 private:
  // The place of an action in the timeline: an index of `ranks`, or of
  // `host_copies`.
  struct Found {
    int rank = -1;  // -1: the action is not in the timeline
    std::size_t position = 0;
    bool is_host_copy = false;
    // Of a host copy: the previous one of its rank in the same direction.
    const HostCopy* previous = nullptr;

    bool exists() const { return rank >= 0; }
  };

  void find_host_copies(std::size_t rank) {
    std::map<ActionKind, const HostCopy*> last;
    const auto& copies = timeline_.host_copies[rank];
    for (std::size_t k = 0; k < copies.size(); ++k) {
      const Action& action = copies[k].action;
      found_[action] = {static_cast<int>(rank), k, /*is_host_copy=*/true,
                        std::exchange(last[action.kind], &copies[k])};
    }
  }

  double end_of(const Found& found) const {
    return found.is_host_copy
               ? timeline_.host_copies[found.rank][found.position].end
               : span_of(found).end;
  }

  // Returns what ended last of all for which the host copy at `place` waited.
  std::optional<Found> before_host_copy(const Found& place) const {
    const HostCopy& copy = timeline_.host_copies[place.rank][place.position];
    std::optional<Found> latest;
    const auto wait_for = [&](const Found& found) {
      if (!found.exists()) return;
      if (!latest || end_of(found) > end_of(*latest)) latest = found;
    };
    if (copy.place > 0) wait_for({place.rank, copy.place - 1});
    if (place.previous) wait_for(found_.get(place.previous->action));
    if (copy.action.kind == ActionKind::kReload) {
      wait_for(found_.get(
          {copy.action.stage, ActionKind::kOffload, copy.action.microbatch}));
    }
    return latest;
  }
  // A key for copies: whether the output is of a forward, its micro-batch, and
  // the rank to which it goes.
  using Way = std::tuple<bool, int, int>;

  // Adds a step. Throws if the path is longer than all actions and copies,
  // which happens only in a cycle.
  void add(const CriticalStep& step) {
    if (path_.size() > found_.size() + before_.size()) {
      internal::refuse("the timeline is not possible: ", to_string(step.action),
                       " waits for itself");
    }
    path_.push_back(step);
  }

  const Span& span_of(const Found& found) const {
    return timeline_.ranks[found.rank][found.position];
  }

  std::optional<Found> last() const {
    std::optional<Found> last;
    double end = -1;
    for (std::size_t r = 0; r < timeline_.ranks.size(); ++r) {
      const auto& spans = timeline_.ranks[r];
      for (std::size_t k = 0; k < spans.size(); ++k) {
        if (spans[k].end <= end) continue;
        end = spans[k].end;
        last = Found{static_cast<int>(r), k};
      }
    }
    return last;
  }

  // Adds the copies for which the action at `place` waited, and returns the
  // action before them: the one that ended last of those for which it waited.
  // Returns nullopt if there is none, or if it is in another process.
  std::optional<Found> before(const Found& place) {
    const auto& spans = timeline_.ranks[place.rank];
    std::size_t first = place.position, end = place.position + 1;
    if (first > 0 && spans[first - 1].action.fused_with_next) --first;
    if (spans[place.position].action.fused_with_next && end < spans.size())
      ++end;
    // In a late recompute the backward runs after R, not beside it, and so do
    // the actions of other blocks where both have spans of their own.
    if (first < place.position &&
        (spans[first].action.kind == ActionKind::kRecompute ||
         spans[first].end <= spans[place.position].start)) {
      return Found{place.rank, first};
    }

    std::optional<Found> action;
    int copy = -1;  // set if a copy ended last
    double time = -1;
    const auto wait_for = [&](const Found& found) {
      const double there = end_of(found);
      if (there <= time) return;
      time = there;
      action = found;
      copy = -1;
    };
    if (first > 0) wait_for({place.rank, first - 1});
    for (std::size_t k = first; k < end; ++k) {
      const auto copies =
          copies_for(spans[k].action, place.rank, spans[first].start);
      for (const Action& need : internal::needs(spans[k].action)) {
        const Found found = found_.get(need);
        if (!found.exists()) continue;
        if (found.is_host_copy) {
          wait_for(found);
          continue;
        }
        if (found.rank == place.rank && found.position >= first &&
            found.position < end) {
          continue;  // in the same block
        }
        const bool copied = std::ranges::any_of(copies, [&](int number) {
          return timeline_.transfers[number].action.stage == need.stage;
        });
        if (!copied) wait_for(found);
      }
      for (const int number : copies) {
        const double there = timeline_.transfers[number].end;
        if (there <= time) continue;
        time = there;
        copy = number;
      }
    }
    return copy >= 0 ? along_link(copy) : action;
  }

  // Returns the copies to `rank` for which `action` may have waited: those that
  // had arrived at `start`, when the action, or its block, began.
  std::vector<int> copies_for(const Action& action, int rank,
                              double start) const {
    std::vector<int> numbers;
    const bool forward = action.kind == ActionKind::kForward;
    if (!forward && !internal::begins_backward(action.kind)) return numbers;
    const auto found = arrivals_.find(
        {forward, action.microbatch, timeline_.first_rank + rank});
    if (found == arrivals_.end()) return numbers;
    for (const int number : found->second) {
      const Transfer& transfer = timeline_.transfers[number];
      const int from = transfer.action.stage;
      const bool needed = forward ? from < action.stage : from > action.stage;
      if (needed && transfer.end <= start) numbers.push_back(number);
    }
    return numbers;
  }

  // Adds a copy, and the previous copies on its link for which it waited.
  // Returns the action whose output the first of them carries, or nullopt if
  // that action is in another process.
  std::optional<Found> along_link(int number) {
    const Transfer* transfer = &timeline_.transfers[number];
    double end = transfer->end;
    while (true) {
      add({transfer->action, transfer->from, transfer->to, transfer->start,
           end});
      const Found made_by = found_.get(transfer->action);
      if (!made_by.exists()) return std::nullopt;
      if (before_[number] < 0 || transfer->start <= span_of(made_by).end) {
        return made_by;
      }
      number = before_[number];
      transfer = &timeline_.transfers[number];
      end = transfer->sent;
    }
  }

  const Timeline& timeline_;
  internal::ActionTable<Found> found_;
  std::vector<int> before_;  // of each copy, the previous one on its link
  std::map<Way, std::vector<int>> arrivals_;  // indices of `transfers`
  std::vector<CriticalStep> path_;
};

}  // namespace

std::vector<CriticalStep> critical_path(const Timeline& timeline) {
  return Tracer(timeline).path();
}

// ---- Idle time

namespace {

// One action, or two that run together.
struct Block {
  double start = 0, end = 0;
  std::size_t first = 0, last = 0;  // indices of spans, both inclusive
};

std::vector<Block> blocks_of(const std::vector<Span>& spans) {
  std::vector<Block> blocks;
  for (std::size_t k = 0; k < spans.size(); ++k) {
    // The two actions of a measured pair have a span each, and do not join.
    const bool joins = k > 0 && is_overlapped(spans[k - 1].action) &&
                       spans[k].start == spans[k - 1].start &&
                       spans[k].end == spans[k - 1].end;
    if (joins) {
      blocks.back().last = k;
    } else {
      blocks.push_back({spans[k].start, spans[k].end, k, k});
    }
  }
  return blocks;
}

// The input for which a block waited: the output of an action, and its copy.
struct Awaited {
  static constexpr int kNothing = -1, kRemote = -2;
  int rank = kNothing;         // the rank of the action
  double made = 0, there = 0;  // when the action ended, and the copy arrived
  double from_host = 0;        // when the rank's own copies from its host ended
};

// The cause of a wait while other ranks compute. with_causes() divides it into
// kSchedule and kImbalance.
constexpr IdleCause kComputing = IdleCause::kImbalance;

// A part of the idle time before an action, or after the last one.
struct Piece {
  IdleSpan span;
  // Index of the next span of the rank; the number of spans after the last one.
  std::size_t before = 0;
};

// Finds the cause of each wait in a timeline.
class Explainer {
 public:
  explicit Explainer(const Timeline& timeline)
      : timeline_(timeline), ends_(internal::actions_of(timeline)) {
    for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
      const auto& spans = timeline.ranks[r];
      blocks_.push_back(blocks_of(spans));
      for (const Span& span : spans) {
        ends_[span.action] = {static_cast<int>(r), span.end, span.end};
        if (span.end <= last_end_) continue;
        last_end_ = span.end;
        last_rank_ = r;
      }
    }
    for (const Transfer& each : timeline.transfers) {
      const auto [found, is_first] = arrivals_.try_emplace(
          key_of(each.action, each.to),
          Awaited{Awaited::kRemote, each.start, each.end});
      if (is_first) continue;
      found->second.made = std::min(found->second.made, each.start);
      found->second.there = std::max(found->second.there, each.end);
    }
    for (const auto& copies : timeline.host_copies) {
      for (const HostCopy& each : copies) ends_[each.action].there = each.end;
    }
  }

  // Returns the idle time of a rank in pieces, in the order of time.
  std::vector<Piece> of_rank(std::size_t rank) {
    pieces_.clear();
    explain(rank, 0, timeline_.makespan);
    return std::move(pieces_);
  }

 private:
  // An action and the rank to which its output is copied.
  using Key = std::tuple<int, ActionKind, int, int>;
  static Key key_of(const Action& action, int to) {
    return {action.stage, action.kind, action.microbatch, to};
  }

  void add(double from, double to, IdleCause cause) {
    if (!pieces_.empty() && pieces_.back().span.end == from &&
        pieces_.back().span.cause == cause &&
        pieces_.back().before == before_) {
      pieces_.back().span.end = to;
    } else if (from < to) {
      pieces_.push_back({{from, to, cause}, before_});
    }
  }

  // A time on `rank` that is to be explained, or whose cause is known. At depth
  // 0 it is the rank in question, and gives pieces for its idle time only. At
  // other depths a rank waits for `rank`, so what `rank` computes is
  // kComputing.
  struct Part {
    std::size_t rank = 0, depth = 0;
    double from = 0, to = 0;
    std::optional<IdleCause> cause;
  };

  // Explains the time between `from` and `to` on `rank`. The parts are in a
  // stack, the earliest on top, since ranks may wait in a long chain.
  void explain(std::size_t rank, double from, double to) {
    parts_.push_back({rank, 0, from, to, std::nullopt});
    while (!parts_.empty()) {
      const Part part = parts_.back();
      parts_.pop_back();
      if (part.cause) {
        add(part.from, part.to, *part.cause);
      } else if (part.from < part.to) {
        explain_beginning(part);
      }
    }
  }

  // Explains `part` until its first block begins, or ends.
  void explain_beginning(const Part& part) {
    if (part.depth > timeline_.ranks.size()) {
      internal::refuse("the timeline is not possible: rank ", part.rank,
                       " waits for itself");
    }
    const auto& blocks = blocks_[part.rank];
    const auto block = std::lower_bound(
        blocks.begin(), blocks.end(), part.from,
        [](const Block& each, double time) { return each.end <= time; });
    const bool is_end = block == blocks.end();
    if (part.depth == 0) {
      before_ = is_end ? timeline_.ranks[part.rank].size() : block->first;
    }
    if (is_end) {
      // After its last action a rank waits for the last action of the step.
      explain_gap(part, {static_cast<int>(last_rank_), last_end_, last_end_});
      return;
    }
    const bool is_idle = part.from < block->start;
    const double until = std::min(part.to, is_idle ? block->start : block->end);
    Part gap = part, rest = part;
    gap.to = rest.from = until;
    parts_.push_back(rest);
    if (is_idle) {
      explain_gap(gap, awaited(part.rank, *block));
    } else if (part.depth > 0) {
      add(part.from, until, kComputing);
    }
  }

  // Explains the idle time `gap`, at whose end its rank had `awaited`.
  void explain_gap(const Part& gap, const Awaited& awaited) {
    const bool in_another_process = awaited.rank == Awaited::kRemote;
    const bool from_another_rank =
        in_another_process ||
        (awaited.rank >= 0 &&
         static_cast<std::size_t>(awaited.rank) != gap.rank);
    Part wait = gap;
    wait.to = from_another_rank ? std::clamp(awaited.made, gap.from, gap.to)
                                : gap.from;
    if (in_another_process) {
      wait.cause = IdleCause::kRemote;
    } else if (from_another_rank) {
      wait.rank = awaited.rank;
      ++wait.depth;
    }
    double copied = awaited.from_host;
    if (from_another_rank) copied = std::max(copied, awaited.there);
    const double until = std::clamp(copied, wait.to, gap.to);
    parts_.push_back(
        {gap.rank, gap.depth, until, gap.to, IdleCause::kOverhead});
    parts_.push_back(
        {gap.rank, gap.depth, wait.to, until, IdleCause::kTransfer});
    parts_.push_back(wait);
  }

  // Returns the input from another rank that arrived last for `block`, and when
  // the last copy from the host for it ended.
  Awaited awaited(std::size_t rank, const Block& block) const {
    const auto& spans = timeline_.ranks[rank];
    // The first action of a late recompute, or of a measured pair, also waits
    // for the inputs of the second action.
    const bool pair = spans[block.last].action.fused_with_next;
    const std::size_t end = std::min(spans.size(), block.last + (pair ? 2 : 1));
    Awaited last;
    double from_host = 0;
    for (std::size_t k = block.first; k < end; ++k) {
      for (const Action& need : internal::needs(spans[k].action)) {
        if (!is_compute(need.kind)) {
          from_host = std::max(from_host, ends_.get(need).there);
          continue;
        }
        const Awaited each = source_of(need, rank);
        if (each.rank == Awaited::kNothing) continue;
        if (last.rank == Awaited::kNothing || each.there > last.there) {
          last = each;
        }
      }
    }
    last.from_host = from_host;
    return last;
  }

  // Returns where and when `rank` got the output of `need`, if that is an
  // action of another rank.
  Awaited source_of(const Action& need, std::size_t rank) const {
    const auto arrival = arrivals_.find(
        key_of(need, timeline_.first_rank + static_cast<int>(rank)));
    Awaited source = ends_.get(need);
    if (source.rank < 0) {
      return arrival != arrivals_.end() ? arrival->second : Awaited();
    }
    if (static_cast<std::size_t>(source.rank) == rank) return {};
    if (arrival != arrivals_.end()) source.there = arrival->second.there;
    return source;
  }

  const Timeline& timeline_;
  internal::ActionTable<Awaited> ends_;
  std::vector<std::vector<Block>> blocks_;  // by rank
  std::map<Key, Awaited> arrivals_;
  double last_end_ = -1;
  std::size_t last_rank_ = 0;
  std::vector<Piece> pieces_;  // of the rank in question
  std::vector<Part> parts_;    // to explain, the earliest at the end
  std::size_t before_ = 0;     // Piece::before of its next piece
};

// Returns the seconds for which each rank would be idle before each of its
// spans, and at the end, if all stages took equally long.
std::vector<std::vector<double>> gaps_of_equal_stages(
    const Timeline& timeline) {
  Schedule schedule;
  std::array<double, internal::kActionKinds> seconds{};
  std::array<int, internal::kActionKinds> counts{};
  for (const auto& spans : timeline.ranks) {
    auto& actions = schedule.ranks.emplace_back();
    const std::vector<Block> blocks = blocks_of(spans);
    for (const Block& block : blocks) {
      for (std::size_t k = block.first; k <= block.last; ++k) {
        const auto kind = static_cast<std::size_t>(spans[k].action.kind);
        // Both spans of a pair have the time of the whole block.
        seconds[kind] += (spans[k].end - spans[k].start) /
                         static_cast<double>(block.last - block.first + 1);
        ++counts[kind];
        actions.push_back(spans[k].action);
      }
    }
  }
  const auto stages = static_cast<std::size_t>(num_stages(schedule));
  Costs costs;
  for (std::size_t k = 0; k < internal::kActionCosts.size(); ++k) {
    (costs.*internal::kActionCosts[k].list)
        .assign(stages, counts[k] > 0 ? seconds[k] / counts[k] : 0.0);
  }
  const Timeline equal = simulate(schedule, costs);
  std::vector<std::vector<double>> gaps;
  for (const auto& spans : equal.ranks) {
    auto& list = gaps.emplace_back(spans.size() + 1);
    double until = 0;
    for (std::size_t k = 0; k < spans.size(); ++k) {
      list[k] = std::max(0.0, spans[k].start - until);
      until = spans[k].end;
    }
    list.back() = equal.makespan - until;
  }
  return gaps;
}

// Returns the pieces with their causes. A wait for computing is kSchedule for
// as long as `gaps` says at the same place. Gaps that are left over count at
// the first places with a longer wait. The rest is kImbalance.
std::vector<IdleSpan> with_causes(const std::vector<Piece>& pieces,
                                  const std::vector<double>& gaps) {
  std::vector<double> waits(gaps.size());
  for (const auto& [span, before] : pieces) {
    if (span.cause == kComputing) waits[before] += span.end - span.start;
  }
  std::vector<double> of_schedule(gaps.size());
  double left = 0;  // seconds of `gaps` that are left over
  for (std::size_t k = 0; k < gaps.size(); ++k) {
    of_schedule[k] = std::min(waits[k], gaps[k]);
    left += gaps[k] - of_schedule[k];
  }
  for (std::size_t k = 0; k < gaps.size(); ++k) {
    const double more = std::min(left, waits[k] - of_schedule[k]);
    of_schedule[k] += more;
    left -= more;
  }

  std::vector<IdleSpan> spans;
  for (const auto& [span, before] : pieces) {
    double& budget = of_schedule[before];
    double from = span.start;  // of the rest, which keeps its cause
    if (span.cause == kComputing) {
      // A rest that comes from rounding does not become a span.
      const bool all = span.end - from <= budget + 1e-12 * span.end;
      from = all ? span.end : from + budget;
      budget = std::max(0.0, budget - (from - span.start));
      if (span.start < from) {
        spans.push_back({span.start, from, IdleCause::kSchedule});
      }
    }
    if (from < span.end) spans.push_back({from, span.end, span.cause});
  }
  return spans;
}

// The name of a cause, and its part of IdleParts.
struct Cause {
  const char* name;
  double IdleParts::*part;
};

// In the order of IdleCause.
constexpr std::array<Cause, 5> kCauses = {
    {{"warm-up, drain", &IdleParts::schedule},
     {"imbalance", &IdleParts::imbalance},
     {"transfer", &IdleParts::transfer},
     {"overhead", &IdleParts::overhead},
     {"remote ranks", &IdleParts::remote}}};

const Cause& entry_of(IdleCause cause) {
  return kCauses[static_cast<std::size_t>(cause)];
}

}  // namespace

const char* to_string(IdleCause cause) { return entry_of(cause).name; }

std::vector<std::vector<IdleSpan>> idle_spans(const Timeline& timeline) {
  Explainer explainer(timeline);  // throws if a stage is not possible
  const auto gaps = gaps_of_equal_stages(timeline);
  std::vector<std::vector<IdleSpan>> spans;
  for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
    spans.push_back(with_causes(explainer.of_rank(r), gaps[r]));
  }
  return spans;
}

std::vector<IdleParts> idle_parts(const Timeline& timeline) {
  std::vector<IdleParts> parts;
  for (const auto& spans : idle_spans(timeline)) {
    IdleParts& sum = parts.emplace_back();
    for (const IdleSpan& each : spans) {
      sum.*entry_of(each.cause).part += each.end - each.start;
    }
  }
  return parts;
}

std::string to_text(const std::vector<IdleParts>& parts, int first_rank) {
  const bool whole = std::ranges::all_of(
      parts, [](const IdleParts& each) { return each.remote == 0; });
  // Without `remote`, the last one, if it is 0 everywhere.
  const std::vector<Cause> causes(kCauses.begin(), kCauses.end() - whole);
  std::vector<std::vector<std::string>> rows{{"", "idle"}};
  for (const Cause& cause : causes) {
    rows[0].insert(rows[0].end(), {cause.name, ""});
  }
  const auto add = [&](const std::string& name, const IdleParts& each) {
    const double total = each.total();
    auto& row = rows.emplace_back();
    row = {name, seconds_text(total)};
    for (const Cause& cause : causes) {
      const double part = each.*cause.part;
      row.push_back(seconds_text(part));
      row.push_back(percent_text(total > 0 ? part / total : 0));
    }
  };
  IdleParts all;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    add("rank " + std::to_string(first_rank + static_cast<int>(r)), parts[r]);
    for (const Cause& cause : causes) all.*cause.part += parts[r].*cause.part;
  }
  add("all", all);
  return columns_text(rows, "lr");
}

}  // namespace gpipe
