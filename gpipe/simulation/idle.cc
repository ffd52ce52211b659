#include "gpipe/simulation/idle.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <utility>

#include "gpipe/schedule/needs.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/simulation/action_index.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/refuse.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/text/columns.h"
#include "gpipe/text/units.h"

namespace gpipe {
namespace {

// One or two actions that run together.
struct Block {
  double start = 0, end = 0;
  std::size_t first = 0, last = 0;  // of the rank's spans, both inclusive
};

// What a block waited for: an action, on this rank or on another one, and then
// its copy.
struct Awaited {
  int rank = -1;  // -1: nothing
  double made = 0, there = 0;
};

// Seconds of a rank's idle time, before waiting is told apart.
struct Waits {
  double computing = 0, transfer = 0, overhead = 0;
};

class Explainer {
 public:
  explicit Explainer(const Timeline& timeline)
      : timeline_(timeline), index_(timeline.ranks), ends_(index_.size()) {
    blocks_.resize(timeline.ranks.size());
    for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
      const auto& spans = timeline.ranks[r];
      for (std::size_t k = 0; k < spans.size(); ++k) {
        const bool joins = k > 0 && is_overlapped(spans[k - 1].action);
        if (joins) {
          blocks_[r].back().last = k;
        } else {
          blocks_[r].push_back({spans[k].start, spans[k].end, k, k});
        }
        ends_[index_.find(spans[k].action)] = {static_cast<int>(r),
                                               spans[k].end, spans[k].end};
      }
      if (!spans.empty() && spans.back().end > last_end_) {
        last_end_ = spans.back().end;
        last_rank_ = r;
      }
    }
    for (const Transfer& each : timeline.transfers) {
      const std::size_t found = index_.find(each.action);
      if (found != ActionIndex::kNone) arrivals_[{found, each.to}] = each.end;
    }
  }

  Waits of_rank(std::size_t rank) {
    Waits waits;
    explain(rank, 0, timeline_.makespan, 0, waits);
    return waits;
  }

 private:
  // What goes on at `rank` between two times. What it computes is waited for,
  // unless it is the rank in question, at depth 0.
  void explain(std::size_t rank, double from, double to, std::size_t depth,
               Waits& waits) {
    if (depth > timeline_.ranks.size()) {
      refuse("the timeline cannot be: rank ", rank, " waits for itself");
    }
    const auto& blocks = blocks_[rank];
    auto block = std::lower_bound(
        blocks.begin(), blocks.end(), from,
        [](const Block& each, double time) { return each.end <= time; });
    while (from < to) {
      if (block == blocks.end()) {
        // The step's end, as if it were another action.
        const Awaited end{static_cast<int>(last_rank_), last_end_, last_end_};
        explain_gap(rank, end, from, to, depth, waits);
        return;
      }
      if (from < block->start) {
        const double until = std::min(to, block->start);
        explain_gap(rank, awaited(rank, *block), from, until, depth, waits);
        from = until;
      }
      if (from < to) {
        const double until = std::min(to, block->end);
        if (depth > 0) waits.computing += until - from;
        from = until;
      }
      ++block;
    }
  }

  void explain_gap(std::size_t rank, const Awaited& awaited, double from,
                   double to, std::size_t depth, Waits& waits) {
    const bool elsewhere =
        awaited.rank >= 0 && static_cast<std::size_t>(awaited.rank) != rank;
    if (elsewhere && from < awaited.made) {
      const double until = std::min(to, awaited.made);
      explain(awaited.rank, from, until, depth + 1, waits);
      from = until;
    }
    if (elsewhere && from < std::min(to, awaited.there)) {
      const double until = std::min(to, awaited.there);
      waits.transfer += until - from;
      from = until;
    }
    waits.overhead += to - from;
  }

  // The last to come of what the block needed from other ranks.
  Awaited awaited(std::size_t rank, const Block& block) const {
    const auto& spans = timeline_.ranks[rank];
    // A late recompute waits for what its backward needs.
    const bool late = spans[block.last].action.with_next;
    const std::size_t end = std::min(spans.size(), block.last + (late ? 2 : 1));
    Awaited last;
    for (std::size_t k = block.first; k < end; ++k) {
      for (const Action& need : needs(spans[k].action)) {
        const std::size_t found = index_.find(need);
        if (found == ActionIndex::kNone || ends_[found].rank < 0 ||
            static_cast<std::size_t>(ends_[found].rank) == rank) {
          continue;
        }
        Awaited each = ends_[found];
        const auto arrival = arrivals_.find({found, static_cast<int>(rank)});
        if (arrival != arrivals_.end()) each.there = arrival->second;
        if (last.rank < 0 || each.there > last.there) last = each;
      }
    }
    return last;
  }

  const Timeline& timeline_;
  const ActionIndex index_;
  std::vector<Awaited> ends_;               // by action
  std::vector<std::vector<Block>> blocks_;  // by rank
  std::map<std::pair<std::size_t, int>, double> arrivals_;
  double last_end_ = -1;
  std::size_t last_rank_ = 0;
};

// The idle time of each rank if all stages took equally long.
std::vector<double> idle_of_equal_stages(const Timeline& timeline) {
  Schedule schedule;
  std::array<double, 5> seconds{};
  std::array<int, 5> counts{};
  for (const auto& spans : timeline.ranks) {
    auto& actions = schedule.ranks.emplace_back();
    bool second = false;
    for (const Span& span : spans) {
      const bool first = is_overlapped(span.action);
      const auto kind = static_cast<std::size_t>(span.action.kind);
      // Both of a pair have the time of the two.
      seconds[kind] += (span.end - span.start) * (first || second ? 0.5 : 1.0);
      ++counts[kind];
      second = first;
      actions.push_back(span.action);
    }
  }
  const auto stages = static_cast<std::size_t>(num_stages(schedule));
  const auto mean = [&](Kind kind) {
    const auto k = static_cast<std::size_t>(kind);
    return std::vector<double>(stages,
                               counts[k] > 0 ? seconds[k] / counts[k] : 0.0);
  };
  Costs costs;
  costs.forward = mean(Kind::kForward);
  costs.backward = mean(Kind::kBackward);
  costs.backward_input = mean(Kind::kBackwardInput);
  costs.backward_weight = mean(Kind::kBackwardWeight);
  costs.recompute = mean(Kind::kRecompute);
  return simulate(schedule, costs).idle;
}

}  // namespace

std::vector<IdleParts> idle_parts(const Timeline& timeline) {
  const std::vector<double> ideal = idle_of_equal_stages(timeline);
  Explainer explainer(timeline);
  std::vector<IdleParts> parts;
  for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
    const Waits waits = explainer.of_rank(r);
    const double schedule = std::min(waits.computing, ideal[r]);
    parts.push_back(
        {schedule, waits.computing - schedule, waits.transfer, waits.overhead});
  }
  return parts;
}

std::string to_text(const std::vector<IdleParts>& parts) {
  std::vector<std::vector<std::string>> rows{{"", "idle", "warm-up, drain", "",
                                              "imbalance", "", "transfer", "",
                                              "overhead", ""}};
  const auto add = [&](const std::string& name, const IdleParts& each) {
    auto& row = rows.emplace_back();
    const double total = each.total();
    row = {name, seconds_text(total)};
    for (const double part :
         {each.schedule, each.imbalance, each.transfer, each.overhead}) {
      row.push_back(seconds_text(part));
      row.push_back(percent_text(total > 0 ? part / total : 0));
    }
  };
  IdleParts all;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    add("rank " + std::to_string(r), parts[r]);
    all.schedule += parts[r].schedule;
    all.imbalance += parts[r].imbalance;
    all.transfer += parts[r].transfer;
    all.overhead += parts[r].overhead;
  }
  add("all", all);
  std::string text;
  for (const std::string& line : align_columns(rows, "lrrrrrrrrr")) {
    text += line + "\n";
  }
  return text;
}

}  // namespace gpipe
