#include "gpipe/runtime/recording.h"

#include <utility>

namespace gpipe {

Recording::Recording(std::vector<c10::Device> devices)
    : devices_(std::move(devices)), records_(devices_.size()) {}

void Recording::begin() {
  for (const c10::Device& device : devices_) {
    begin_.push_back(Stamp::now(device));
  }
}

void Recording::action_starts(std::size_t rank, const Action& action) {
  records_[rank].push_back({action, Stamp::now(devices_[rank]), {}});
}

void Recording::action_ends(std::size_t rank) {
  records_[rank].back().end = Stamp::now(devices_[rank]);
}

Timeline Recording::timeline() const {
  std::vector<std::vector<Span>> ranks(records_.size());
  for (std::size_t r = 0; r < records_.size(); ++r) {
    for (const Record& each : records_[r]) {
      ranks[r].push_back({each.action, each.start.seconds_since(begin_[r]),
                          each.end.seconds_since(begin_[r])});
    }
  }
  return timeline_of(std::move(ranks));
}

}  // namespace gpipe
