#include "gpipe/distributed/replicas/replica_sums.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "gpipe/base/threads/exit_gate.h"
#include "gpipe/runtime/run/executor.h"

namespace gpipe::internal {

ReplicaSums::ReplicaSums(Communicator& world, Transport& transport,
                         std::vector<int> members, int tag, SumShare share,
                         int64_t bucket_bytes, SumMethod method)
    : reducer_(world, transport, std::move(members), tag, share, method),
      bucket_bytes_(bucket_bytes),
      // One thread, because the workers of the partitions use the cores.
      worker_(new_worker([] {}, /*threads=*/1)) {}

ReplicaSums::~ReplicaSums() { stop(); }

void ReplicaSums::begin(std::vector<Parameter> parameters) {
  stop();
  summands_.clear();
  states_.clear();
  numbers_.clear();
  for (Parameter& each : parameters) {
    numbers_.emplace(each.tensor.unsafeGetTensorImpl(), summands_.size());
    State& state = states_.emplace_back();
    state.stage = each.stage;
    summands_.push_back({std::move(each.tensor), at::Tensor()});
  }
  ends_ = cut_buckets(summands_, bucket_bytes_);
  done_ = 0;
  times_.clear();
  stopped_ = false;
  error_ = nullptr;
  running_ = true;
  worker_->post([this] {
    try {
      add_up();
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

void ReplicaSums::add_up() {
  reducer_.agree(summands_);
  std::size_t begin = 0;
  for (const std::size_t end : ends_) {
    {
      const WaitScope waiting;
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] {
        return stopped_ ||
               std::all_of(states_.begin() + begin, states_.begin() + end,
                           [](const State& s) { return s.there; });
      });
      if (stopped_) return;
    }
    // From here on, only this thread uses these summands.
    BucketTime& time = times_.emplace_back();
    time.start = std::chrono::steady_clock::now();
    for (std::size_t k = begin; k < end; ++k) {
      time.bytes += static_cast<int64_t>(summands_[k].like.nbytes());
      use(k);
    }
    reducer_.add_up(summands_.data() + begin, summands_.data() + end);
    for (std::size_t k = begin; k < end; ++k) {
      if (!summands_[k].grad.defined()) continue;
      states_[k].made = Event::record(summands_[k].grad.device());
    }
    begin = end;
    time.end = std::chrono::steady_clock::now();
    std::lock_guard<std::mutex> lock(mutex_);
    ++done_;
  }
}

void ReplicaSums::use(std::size_t k) {
  const at::Tensor& grad = summands_[k].grad;
  if (!grad.defined()) return;
  states_[k].made.wait(grad.device());
  record_stream(grad, grad.device());
}

bool ReplicaSums::give(const at::Tensor& parameter, at::Tensor& grad,
                       const Event& made) {
  const auto found = numbers_.find(parameter.unsafeGetTensorImpl());
  if (found == numbers_.end()) return false;
  const std::size_t k = found->second;
  std::lock_guard<std::mutex> lock(mutex_);
  // The first one may be in an exchange already.
  TORCH_CHECK(!states_[k].there, "the gradient of parameter ", k, " of ",
              states_.size(), " of this step comes a second time, from stage ",
              states_[k].stage, " or another one");
  summands_[k].grad = std::move(grad);
  states_[k].made = made;
  states_[k].there = true;
  changed_.notify_all();
  return true;
}

void ReplicaSums::close(int64_t stage) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (State& each : states_) {
    if (each.stage == stage) each.there = true;
  }
  changed_.notify_all();
}

std::size_t ReplicaSums::done() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

std::size_t ReplicaSums::buckets() const { return ends_.size(); }

std::vector<Summand> ReplicaSums::finish() {
  join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  for (std::size_t k = 0; k < summands_.size(); ++k) use(k);
  return std::move(summands_);
}

void ReplicaSums::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  join();
}

void ReplicaSums::join() {
  if (running_) worker_->flush();
  running_ = false;
}

}  // namespace gpipe::internal
