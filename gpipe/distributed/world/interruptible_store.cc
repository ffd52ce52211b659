#include "gpipe/distributed/world/interruptible_store.h"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <utility>

namespace gpipe::internal {
namespace {

// The first and the longest pause between two questions. Each is twice as long
// as the one before, so that many ranks that wait do not keep the store from
// answering.
constexpr std::chrono::milliseconds kPause{1}, kLongest{16};

}  // namespace

InterruptibleStore::InterruptibleStore(
    c10::intrusive_ptr<c10d::Store> inner,
    std::shared_ptr<const std::atomic<bool>> stopped,
    std::chrono::milliseconds timeout)
    : c10d::Store(timeout),
      inner_(std::move(inner)),
      stopped_(std::move(stopped)) {}

c10::intrusive_ptr<c10d::Store> InterruptibleStore::clone() {
  return c10::make_intrusive<InterruptibleStore>(inner_, stopped_, timeout_);
}

void InterruptibleStore::set(const std::string& key,
                             const std::vector<uint8_t>& value) {
  inner_->set(key, value);
}

std::vector<uint8_t> InterruptibleStore::compareSet(
    const std::string& key, const std::vector<uint8_t>& current,
    const std::vector<uint8_t>& value) {
  return inner_->compareSet(key, current, value);
}

std::vector<uint8_t> InterruptibleStore::get(const std::string& key) {
  wait({key});
  return inner_->get(key);
}

int64_t InterruptibleStore::add(const std::string& key, int64_t value) {
  return inner_->add(key, value);
}

bool InterruptibleStore::deleteKey(const std::string& key) {
  return inner_->deleteKey(key);
}

bool InterruptibleStore::check(const std::vector<std::string>& keys) {
  return inner_->check(keys);
}

int64_t InterruptibleStore::getNumKeys() { return inner_->getNumKeys(); }

void InterruptibleStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

void InterruptibleStore::wait(const std::vector<std::string>& keys,
                              const std::chrono::milliseconds& timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto pause = kPause;
  while (!inner_->check(keys)) {
    if (*stopped_) throw std::runtime_error("it was aborted");
    if (std::chrono::steady_clock::now() >= deadline) {
      throw std::runtime_error("no value came in time for '" + keys.front() +
                               "'");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
}

}  // namespace gpipe::internal
