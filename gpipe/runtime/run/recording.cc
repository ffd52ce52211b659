#include "gpipe/runtime/run/recording.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace gpipe::internal {

Recording::Recording(std::vector<c10::Device> devices, MemoryReader memory)
    : devices_(std::move(devices)),
      memory_(std::move(memory)),
      records_(devices_.size()),
      copies_(devices_.size()) {}

void Recording::begin() {
  for (const c10::Device& device : devices_) Stamp::now(device).wait();
  for (std::size_t r = 0; r < devices_.size(); ++r) {
    first_bytes_.push_back(bytes_on(r));
  }
  host_begin_ = std::chrono::steady_clock::now();
  for (auto device = devices_.begin(); device != devices_.end(); ++device) {
    // Ranks of one device begin at the same time.
    const auto first = std::find(devices_.begin(), device, *device);
    begin_.push_back(first == device ? Stamp::now(*device)
                                     : begin_[first - devices_.begin()]);
  }
}

std::optional<double> Recording::bytes_on(std::size_t rank) const {
  return memory_ ? memory_(devices_[rank]) : std::nullopt;
}

// Memory is read outside of the measured time of the action.
void Recording::action_starts(std::size_t rank, const Action& action) {
  const auto bytes = bytes_on(rank);
  records_[rank].push_back({action, Stamp::now(devices_[rank]), {}, bytes, {}});
}

void Recording::action_ends(std::size_t rank) {
  Record& record = records_[rank].back();
  record.end = Stamp::now(devices_[rank]);
  record.bytes_after = bytes_on(rank);
}

void Recording::message(const Action& made_by, int from, int to, double bytes,
                        Time start, Time end) {
  std::lock_guard<std::mutex> lock(mutex_);
  messages_.push_back({{made_by, from, to, 0, 0, 0, bytes}, start, end});
}

void Recording::gradient_sum(std::size_t rank, double bytes, Time start,
                             Time end) {
  gradient_sums_.resize(devices_.size());
  gradient_sums_[rank].push_back({since_begin(start), since_begin(end), bytes});
}

double Recording::since_begin(Time time) const {
  const std::chrono::duration<double> passed = time - host_begin_;
  return std::max(0.0, passed.count());
}

std::optional<double> Recording::seconds(const Stamp& stamp,
                                         const c10::Device& device) const {
  const auto found = std::ranges::find(devices_, device);
  if (found == devices_.end()) return std::nullopt;
  // A copy stream may run before the step's first event.
  return std::max(0.0, stamp.seconds_since(begin_[found - devices_.begin()]));
}

std::vector<Transfer> Recording::transfers() const {
  std::map<int, int> rank_of_stage;
  std::set<std::tuple<int, ActionKind, int>> actions;
  for (std::size_t r = 0; r < records_.size(); ++r) {
    for (const auto& [action, start, end, before, after] : records_[r]) {
      rank_of_stage[action.stage] = static_cast<int>(r);
      actions.emplace(action.stage, action.kind, action.microbatch);
    }
  }
  std::vector<Transfer> transfers;
  for (std::size_t r = 0; r < copies_.size(); ++r) {
    for (const CopyLog::Copy& each : copies_[r].copies) {
      const auto from = rank_of_stage.find(each.made_by.stage);
      const auto start = seconds(each.start, each.from);
      const auto sent = seconds(each.sent, each.from);
      const auto end = seconds(each.end, each.to);
      if (from == rank_of_stage.end() || !start || !sent || !end) continue;
      transfers.push_back({each.made_by, from->second, static_cast<int>(r),
                           *start, *sent, *end, each.bytes});
    }
  }
  for (const Message& each : messages_) {
    Transfer transfer = each.transfer;
    // A message may arrive before the step has begun.
    transfer.start = since_begin(each.start);
    transfer.sent = transfer.end = since_begin(each.end);
    transfers.push_back(transfer);
  }
  for (Transfer& each : transfers) {
    Action& made_by = each.action;
    if (made_by.kind == ActionKind::kBackward &&
        actions.count({made_by.stage, ActionKind::kBackwardInput,
                       made_by.microbatch}) > 0) {
      made_by.kind = ActionKind::kBackwardInput;
    }
  }
  std::ranges::stable_sort(transfers, [](const Transfer& a, const Transfer& b) {
    return a.start < b.start;
  });
  return transfers;
}

std::vector<std::vector<HostCopy>> Recording::host_copies() const {
  std::vector<std::vector<HostCopy>> result;
  for (std::size_t r = 0; r < copies_.size(); ++r) {
    for (const CopyLog::ToOrFromHost& each : copies_[r].host_copies) {
      result.resize(copies_.size());
      result[r].push_back({each.action, each.place,
                           std::max(0.0, each.start.seconds_since(begin_[r])),
                           std::max(0.0, each.end.seconds_since(begin_[r]))});
    }
  }
  return result;
}

std::vector<MemoryPoint> Recording::memory_of(
    std::size_t rank, const std::vector<Span>& spans) const {
  std::vector<MemoryPoint> points;
  const auto add = [&](double time, const std::optional<double>& bytes) {
    if (bytes) points.push_back({time, *bytes});
  };
  add(0, first_bytes_[rank]);
  for (std::size_t k = 0; k < spans.size(); ++k) {
    add(spans[k].start, records_[rank][k].bytes_before);
    add(spans[k].end, records_[rank][k].bytes_after);
  }
  return points;
}

Timeline Recording::timeline() const {
  std::vector<std::vector<Span>> ranks(records_.size());
  for (std::size_t r = 0; r < records_.size(); ++r) {
    for (const Record& each : records_[r]) {
      ranks[r].push_back({each.action, each.start.seconds_since(begin_[r]),
                          each.end.seconds_since(begin_[r])});
    }
  }
  Timeline timeline = timeline_of(std::move(ranks));
  timeline.began =
      std::chrono::duration<double>(host_begin_.time_since_epoch()).count();
  timeline.transfers = transfers();
  timeline.host_copies = host_copies();
  timeline.gradient_sums = gradient_sums_;
  bool known = false;
  for (std::size_t r = 0; r < records_.size(); ++r) {
    timeline.memory.push_back(memory_of(r, timeline.ranks[r]));
    double& peak = timeline.peak_bytes.emplace_back();
    for (const MemoryPoint& each : timeline.memory.back()) {
      peak = std::max(peak, each.bytes);
      known = true;
    }
  }
  if (!known) {
    timeline.memory.clear();
    timeline.peak_bytes.clear();
  }
  return timeline;
}

}  // namespace gpipe::internal
