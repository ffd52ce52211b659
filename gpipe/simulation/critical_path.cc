#include "gpipe/simulation/critical_path.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/schedule/needs.h"
#include "gpipe/simulation/action_index.h"

namespace gpipe {
namespace {

// A search for the critical path, from the last action back.
class Tracer {
 public:
  explicit Tracer(const Timeline& timeline)
      : timeline_(timeline),
        found_(timeline.ranks),
        before_(timeline.transfers.size(), -1),
        host_found_(timeline.host_copies) {
    for (std::size_t r = 0; r < timeline.host_copies.size(); ++r) {
      find_host_copies(r);
    }
    for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
      const auto& spans = timeline.ranks[r];
      for (std::size_t k = 0; k < spans.size(); ++k) {
        found_[spans[k].action] = {static_cast<int>(r), k};
      }
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

    bool exists() const { return rank >= 0; }
  };
  // The place of a host copy, and of the previous one of its rank in the same
  // direction.
  struct FoundCopy {
    Found found;
    std::optional<std::size_t> previous;
  };

  void find_host_copies(std::size_t rank) {
    std::map<ActionKind, std::size_t> last;
    const auto& copies = timeline_.host_copies[rank];
    for (std::size_t k = 0; k < copies.size(); ++k) {
      FoundCopy& copy = host_found_[copies[k].action];
      copy.found = {static_cast<int>(rank), k, /*is_host_copy=*/true};
      const auto [entry, is_first] = last.emplace(copies[k].action.kind, k);
      if (!is_first) copy.previous = std::exchange(entry->second, k);
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
      if (!latest || end_of(found) > end_of(*latest)) latest = found;
    };
    if (copy.place > 0) wait_for({place.rank, copy.place - 1});
    if (const auto previous = host_found_.get(copy.action).previous) {
      wait_for({place.rank, *previous, /*is_host_copy=*/true});
    }
    if (copy.action.kind == ActionKind::kReload) {
      const Found away = host_found_
                             .get({copy.action.stage, ActionKind::kOffload,
                                   copy.action.microbatch})
                             .found;
      if (away.exists()) wait_for(away);
    }
    return latest;
  }
  // A key for copies: whether the output is of a forward, its micro-batch, and
  // the rank to which it goes.
  using Way = std::tuple<bool, int, int>;

  // Adds a step. Throws if the path is longer than all actions and copies,
  // which happens only in a cycle.
  void add(const CriticalStep& step) {
    if (path_.size() > found_.size() + before_.size() + host_found_.size()) {
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
    // In a late recompute the backward runs after R, not beside it.
    if (first < place.position &&
        spans[first].action.kind == ActionKind::kRecompute) {
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
        const Found host_copy = host_found_.get(need).found;
        if (host_copy.exists()) wait_for(host_copy);
        const Found found = found_.get(need);
        if (!found.exists()) continue;
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
  internal::ActionTable<FoundCopy> host_found_;
  std::map<Way, std::vector<int>> arrivals_;  // indices of `transfers`
  std::vector<CriticalStep> path_;
};

}  // namespace

std::vector<CriticalStep> critical_path(const Timeline& timeline) {
  return Tracer(timeline).path();
}

}  // namespace gpipe
