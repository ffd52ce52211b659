#include "balancing/chain/search.h"

#include <algorithm>
#include <cstddef>
#include <queue>

namespace gpipe::balancing::detail {
namespace {

// The cuts whose largest forward and largest backward are in these ranges, ends
// included.
struct Region {
  int64_t least_forward, most_forward;
  int64_t least_backward, most_backward;
  int64_t sum = 0;       // lower bound for its cuts
  int64_t makespan = 0;  // lower bound for its cuts
  int64_t number = 0;    // in the order of creation

  bool empty() const {
    return least_forward > most_forward || least_backward > most_backward;
  }
  // Orders the queue: the smallest makespan first, and the oldest among equals.
  friend bool operator<(const Region& a, const Region& b) {
    return a.makespan != b.makespan ? a.makespan > b.makespan
                                    : a.number > b.number;
  }
};

class Search {
 public:
  explicit Search(const ChainPaths& paths)
      : paths_(paths), times_(paths.costs().chain().microbatches - 1) {}

  std::vector<Label> run() {
    const Distances all = paths_.distances({});
    if (all[0][0] == kNone) return {};
    if (times_ == 0) return {{all[0][0], kNone, kNone}};
    for (const auto& balance : plain_balances(paths_.costs().chain())) {
      try_balance(balance);
    }
    const Label shortest = label_of(paths_.path(all, {}));
    keep(shortest);
    // Next to the smallest sum, only this much time is left for the largest
    // times.
    const int64_t most = (least_ - shortest.sum) / times_;
    add({0, most, 0, most, shortest.sum});
    while (!regions_.empty()) {
      const Region region = regions_.top();
      regions_.pop();
      if (region.makespan > least_) break;
      search(region);
    }
    return best_;
  }

 private:
  void try_balance(const std::vector<int64_t>& balance) {
    std::vector<Block> blocks;
    Cut at = 0;
    for (std::size_t j = 0; j < balance.size(); ++j) {
      const Cut last = at + balance[j];
      paths_.for_blocks(static_cast<int64_t>(j), at, {},
                        [&](const Block& block) {
                          if (block.last == last) blocks.push_back(block);
                        });
      at = last;
    }
    // Otherwise a device has too little memory.
    if (blocks.size() == balance.size()) keep(label_of(blocks));
  }

  static Label label_of(const std::vector<Block>& blocks) {
    Label label;
    for (const Block& block : blocks) {
      label.sum += block.sum();
      label.forward = std::max({label.forward, block.forward, block.transfer});
      label.backward =
          std::max({label.backward, block.backward, block.transfer});
    }
    return label;
  }

  int64_t makespan_of(const Label& label) const {
    return label.sum + times_ * (label.forward + label.backward);
  }

  void keep(const Label& label) {
    const int64_t makespan = makespan_of(label);
    if (makespan < least_) best_.clear();
    if (makespan <= least_ && std::ranges::find(best_, label) == best_.end()) {
      best_.push_back(label);
    }
    least_ = std::min(least_, makespan);
  }

  // Finds the smallest sum in the region. That rules out all cuts whose largest
  // times are not smaller than those of the cut found. The rest of the region
  // is divided.
  void search(Region region) {
    Label found;
    for (;;) {
      const PassCaps caps = {region.most_forward, region.most_backward};
      const Distances distances = paths_.distances(caps);
      if (distances[0][0] == kNone) return;
      found = label_of(paths_.path(distances, caps));
      keep(found);
      region.sum = found.sum;
      // Next to that sum, only this much time is left for the largest times.
      const int64_t most = (least_ - found.sum) / times_;
      region.most_forward =
          std::min(region.most_forward, most - region.least_backward);
      region.most_backward =
          std::min(region.most_backward, most - region.least_forward);
      if (region.empty()) return;
      if (found.forward <= region.most_forward &&
          found.backward <= region.most_backward) {
        break;
      }
    }
    divide(region, found);
  }

  // Divides the region without the cut found. If the range of forwards is at
  // least as wide as that of backwards, `low` and `high` are the two halves of
  // the part with a smaller forward than the cut found. `rest` is the part
  // whose forward is not smaller but whose backward is. Otherwise forward and
  // backward change roles.
  void divide(const Region& region, const Label& found) {
    Region low = region, high = region, rest = region;
    const int64_t forwards = region.most_forward - region.least_forward;
    const int64_t backwards = region.most_backward - region.least_backward;
    if (forwards >= backwards) {
      const int64_t middle = region.least_forward + forwards / 2;
      low.most_forward = std::min(middle, found.forward - 1);
      high.least_forward = middle + 1;
      high.most_forward = found.forward - 1;
      rest.least_forward = std::max(region.least_forward, found.forward);
      rest.most_backward = found.backward - 1;
    } else {
      const int64_t middle = region.least_backward + backwards / 2;
      low.most_backward = std::min(middle, found.backward - 1);
      high.least_backward = middle + 1;
      high.most_backward = found.backward - 1;
      rest.least_backward = std::max(region.least_backward, found.backward);
      rest.most_forward = found.forward - 1;
    }
    add(low);
    add(high);
    add(rest);
  }

  void add(Region region) {
    if (region.empty()) return;
    region.makespan =
        region.sum + times_ * (region.least_forward + region.least_backward);
    if (region.makespan > least_) return;
    region.number = regions_made_++;
    regions_.push(region);
  }

  const ChainPaths& paths_;
  const int64_t times_;  // m - 1
  int64_t least_ = kNone;
  std::vector<Label> best_;  // of all cuts found with makespan least_
  std::priority_queue<Region> regions_;
  int64_t regions_made_ = 0;
};

}  // namespace

std::vector<Label> best_labels(const ChainPaths& paths) {
  return Search(paths).run();
}

}  // namespace gpipe::balancing::detail
