#include "gpipe/testing/simulated/order.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace gpipe::simulated {
namespace {

bool overlap(const Access& a, const Access& b) {
  return a.begin < b.end && b.begin < a.end;
}

bool covers(const Access& outer, const Access& inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

}  // namespace

void Clock::set(std::size_t stream, std::uint64_t time) {
  if (stream >= times_.size()) times_.resize(stream + 1);
  times_[stream] = time;
}

void Clock::merge(const Clock& other) {
  if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
  for (std::size_t k = 0; k < other.times_.size(); ++k) {
    times_[k] = std::max(times_[k], other.times_[k]);
  }
}

Clock& HappensBefore::clock(std::size_t stream) {
  if (stream >= clocks_.size()) clocks_.resize(stream + 1);
  return clocks_[stream];
}

void HappensBefore::operate(std::size_t stream, const std::string& name,
                            std::optional<std::int64_t> microbatch,
                            const std::vector<Access>& accesses) {
  Clock& now = clock(stream);
  now.merge(host_);
  const std::uint64_t time = now.at(stream) + 1;
  now.set(stream, time);
  for (const Access& access : accesses) {
    std::uintptr_t begin = 0;
    Block* block = block_of(access, begin);
    if (!block) continue;
    const Past current{access, stream, time, name, microbatch};
    auto& history = block->history;
    const auto is_over = [&](const Past& past) {
      if (!overlap(past.access, access)) return false;
      const bool ordered =
          past.stream == stream || past.time <= now.at(past.stream);
      if (!ordered && (past.access.write || access.write)) {
        report(past, current, begin, *block);
        return true;  // reported once
      }
      // An access that is ordered after this one is ordered after the past one,
      // too.
      return ordered && covers(access, past.access) &&
             (access.write || !past.access.write);
    };
    history.erase(std::remove_if(history.begin(), history.end(), is_over),
                  history.end());
    history.push_back(current);
  }
}

Clock HappensBefore::record(std::size_t stream) {
  Clock& now = clock(stream);
  now.merge(host_);
  return now;
}

void HappensBefore::wait(std::size_t stream, const Clock& clock) {
  this->clock(stream).merge(clock);
}

void HappensBefore::host_waited(const Clock& clock) { host_.merge(clock); }

void HappensBefore::add_block(std::uintptr_t begin, std::uintptr_t end) {
  blocks_[begin] = {end, {}};
}

void HappensBefore::remove_block(std::uintptr_t begin) { blocks_.erase(begin); }

void HappensBefore::release_block(std::uintptr_t begin, std::size_t stream,
                                  const std::vector<std::size_t>& recorded) {
  const auto found = blocks_.find(begin);
  if (found == blocks_.end()) return;
  Clock done = record(stream);
  for (const std::size_t each : recorded) done.merge(record(each));
  Block& block = found->second;
  const Past next{{begin, block.end, true},
                  stream,
                  0,
                  "the next use of the freed memory",
                  std::nullopt};
  for (const Past& past : block.history) {
    if (past.time > done.at(past.stream)) report(past, next, begin, block);
  }
  block.history.clear();
}

HappensBefore::Block* HappensBefore::block_of(const Access& access,
                                              std::uintptr_t& begin) {
  if (access.begin == access.end) return nullptr;
  auto found = blocks_.upper_bound(access.begin);
  if (found == blocks_.begin()) return nullptr;
  --found;
  begin = found->first;
  return access.begin < found->second.end ? &found->second : nullptr;
}

std::string HappensBefore::describe(const Past& past) const {
  const auto named = names_.find(past.stream);
  std::string text =
      past.name + " on " +
      (named == names_.end() ? "stream " + std::to_string(past.stream)
                             : named->second);
  if (past.microbatch) {
    text += " (micro-batch " + std::to_string(*past.microbatch) + ")";
  }
  return text + (past.access.write ? ", writing" : ", reading");
}

void HappensBefore::report(const Past& first, const Past& second,
                           std::uintptr_t begin, const Block& block) {
  const std::uintptr_t from = std::max(first.access.begin, second.access.begin);
  const std::uintptr_t to = std::min(first.access.end, second.access.end);
  races_.push_back("no wait orders " + describe(first) + ", and " +
                   describe(second) + ": bytes " +
                   std::to_string(from - begin) + " to " +
                   std::to_string(to - begin) + " of a block of " +
                   std::to_string(block.end - begin));
}

void HappensBefore::name_stream(std::size_t stream, std::string name) {
  names_[stream] = std::move(name);
}

std::vector<std::string> HappensBefore::take_races() {
  return std::exchange(races_, {});
}

Queue::Queue(std::uint64_t number, std::function<void()> prepare,
             std::function<void(double seconds)> sleep)
    : number_(number), sleep_(std::move(sleep)) {
  // The thread is detached. The streams of a device live as long as the
  // process, so there is no good time to join it. An idle thread accesses
  // nothing.
  std::thread thread([this, prepare = std::move(prepare)] {
    prepare();
    loop();
  });
  // The name that debuggers and `top -H` show, and by which trial.cc
  // counts. Without one it would be that of the thread that has used the stream
  // first.
  ::pthread_setname_np(thread.native_handle(), "stream");
  thread.detach();
}

void Queue::push(std::function<void()> task, bool delayed) {
  add({std::move(task), delayed, /*signal=*/false});
}

void Queue::push_signal(std::function<void()> task) {
  add({std::move(task), /*delayed=*/false, /*signal=*/true});
}

void Queue::add(Task task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  filled_.notify_one();
}

void Queue::wait_until_below(std::size_t most) {
  std::unique_lock<std::mutex> lock(mutex_);
  taken_.wait(lock, [&] { return tasks_.size() < most; });
}

bool Queue::idle() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return tasks_.empty() && !busy_;
}

void Queue::set_delays(const Delays& delays) {
  std::lock_guard<std::mutex> lock(mutex_);
  delays_ = delays;
  std::seed_seq seed{delays.seed, number_};
  random_.seed(seed);
}

void Queue::sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

double Queue::next_delay() {
  if (delays_.probability <= 0 || delays_.seconds <= 0) return 0;
  std::uniform_real_distribution<double> uniform(0, 1);
  if (uniform(random_) >= delays_.probability) return 0;
  return uniform(random_) * delays_.seconds;
}

void Queue::loop() {
  for (;;) {
    Task task;
    double delay = 0;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      busy_ = false;
      filled_.wait(lock, [this] { return !tasks_.empty(); });
      task = std::move(tasks_.front());
      tasks_.pop_front();
      taken_.notify_all();
      if (task.signal) {
        task.run();  // under the lock, so that idle() cannot run in between
        continue;
      }
      busy_ = true;
      if (task.delayed) delay = next_delay();
    }
    if (delay > 0) sleep_(delay);
    task.run();
  }
}

}  // namespace gpipe::simulated
