#include "gpipe/simulation/critical_path.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "gpipe/schedule/needs.h"
#include "gpipe/simulation/action_index.h"
#include "gpipe/simulation/refuse.h"

namespace gpipe {
namespace {

// Goes back along a timeline.
class Tracer {
 public:
  explicit Tracer(const Timeline& timeline)
      : timeline_(timeline),
        index_(timeline.ranks),
        found_(index_.size()),
        before_(timeline.transfers.size(), -1) {
    for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
      const auto& spans = timeline.ranks[r];
      for (std::size_t k = 0; k < spans.size(); ++k) {
        Found& found = found_[index_.find(spans[k].action)];
        found.rank = static_cast<int>(r);
        found.position = k;
      }
    }
    std::map<std::pair<int, int>, int> last;
    for (std::size_t t = 0; t < timeline.transfers.size(); ++t) {
      const Transfer& transfer = timeline.transfers[t];
      Found* const found = find(transfer.action);
      if (!found) {
        refuse("there is a transfer of ", to_string(transfer.action),
               ", which is on no rank of the timeline");
      }
      found->transfer = static_cast<int>(t);
      const auto [entry, is_first] =
          last.emplace(std::pair(transfer.from, transfer.to), t);
      if (!is_first) before_[t] = std::exchange(entry->second, t);
    }
  }

  std::vector<CriticalStep> path() {
    auto span = last();
    while (span) {
      const auto& [rank, position, transfer] = *span;
      const Span& at = timeline_.ranks[rank][position];
      add({at.action, rank, rank, at.start, at.end});
      span = before(*span);
      if (span && span->transfer >= 0) span = along_link(span->transfer);
    }
    std::reverse(path_.begin(), path_.end());
    return std::move(path_);
  }

 private:
  struct Found {
    int rank = -1;  // -1: not in the timeline
    std::size_t position = 0;
    int transfer = -1;
  };

  void add(const CriticalStep& step) {
    if (path_.size() > found_.size() + before_.size()) {
      refuse("the timeline cannot be: ", to_string(step.action),
             " waits for itself");
    }
    path_.push_back(step);
  }

  Found* find(const Action& action) {
    const std::size_t found = index_.find(action);
    if (found == ActionIndex::kNone || found_[found].rank < 0) return nullptr;
    return &found_[found];
  }

  std::optional<Found> last() const {
    std::optional<Found> last;
    double end = -1;
    for (std::size_t r = 0; r < timeline_.ranks.size(); ++r) {
      const auto& spans = timeline_.ranks[r];
      for (std::size_t k = 0; k < spans.size(); ++k) {
        if (spans[k].end <= end) continue;
        end = spans[k].end;
        last = Found{static_cast<int>(r), k, -1};
      }
    }
    return last;
  }

  // What the action at `place` waited for longest, by way of its transfer if
  // there is one; none if it waited for nothing.
  std::optional<Found> before(const Found& place) {
    const auto& spans = timeline_.ranks[place.rank];
    std::size_t first = place.position, end = place.position + 1;
    if (first > 0 && spans[first - 1].action.with_next) --first;
    if (spans[place.position].action.with_next && end < spans.size()) ++end;
    // Late recompute: the backward comes after it, not beside it.
    if (first < place.position &&
        spans[first].action.kind == Kind::kRecompute) {
      return Found{place.rank, first, -1};
    }

    std::optional<Found> best;
    double time = -1;
    if (first > 0) {
      best = Found{place.rank, first - 1, -1};
      time = spans[first - 1].end;
    }
    for (std::size_t k = first; k < end; ++k) {
      for (const Action& need : needs(spans[k].action)) {
        const Found* found = find(need);
        if (!found) continue;
        if (found->rank == place.rank && found->position >= first &&
            found->position < end) {
          continue;  // in the block
        }
        const int transfer = found->rank == place.rank ? -1 : found->transfer;
        const double there =
            transfer >= 0 ? timeline_.transfers[transfer].end
                          : timeline_.ranks[found->rank][found->position].end;
        if (there <= time) continue;
        time = there;
        best = Found{found->rank, found->position, transfer};
      }
    }
    return best;
  }

  // Adds a transfer, and those before it that it waited for; the action that
  // made the first of them.
  Found along_link(int number) {
    const Transfer* transfer = &timeline_.transfers[number];
    double end = transfer->end;
    while (true) {
      add({transfer->action, transfer->from, transfer->to, transfer->start,
           end});
      const Found& made_by = *find(transfer->action);
      const Span& span = timeline_.ranks[made_by.rank][made_by.position];
      if (before_[number] < 0 || transfer->start <= span.end) {
        return Found{made_by.rank, made_by.position, -1};
      }
      number = before_[number];
      transfer = &timeline_.transfers[number];
      end = transfer->sent;
    }
  }

  const Timeline& timeline_;
  const ActionIndex index_;
  std::vector<Found> found_;
  std::vector<int> before_;  // of each transfer, the one before on its link
  std::vector<CriticalStep> path_;
};

}  // namespace

std::vector<CriticalStep> critical_path(const Timeline& timeline) {
  return Tracer(timeline).path();
}

}  // namespace gpipe
