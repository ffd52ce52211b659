// What a world needs of c10d's stores besides c10d: waits that can be ended,
// and a store that serves several starts of a world.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

namespace gpipe::internal {

// Returns the text at `key`, or "" if there is no such key. Does not wait for
// it. Throws what the store throws.
inline std::string text_at(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? store.get_to_str(key) : "";
}

// A store that asks another one again and again, instead of waiting in it. A
// client of a TCPStore that waits for a key ends only by a timeout, also if the
// process that would set the key has died, and blocks its other callers.
//
// Waits throw std::runtime_error once `stopped` is set, and at the timeout.
// Thread-safe, if `inner` is.
class InterruptibleStore final : public c10d::Store {
 public:
  InterruptibleStore(c10::intrusive_ptr<c10d::Store> inner,
                     std::shared_ptr<const std::atomic<bool>> stopped,
                     std::chrono::milliseconds timeout)
      : c10d::Store(timeout),
        inner_(std::move(inner)),
        stopped_(std::move(stopped)) {}

  std::vector<uint8_t> get(const std::string& key) override {
    wait({key});
    return inner_->get(key);
  }
  void wait(const std::vector<std::string>& keys) override {
    wait(keys, timeout_);
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

  // Returns a store with the same inner one.
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<InterruptibleStore>(inner_, stopped_, timeout_);
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    inner_->set(key, value);
  }
  std::vector<uint8_t> compareSet(const std::string& key,
                                  const std::vector<uint8_t>& current,
                                  const std::vector<uint8_t>& value) override {
    return inner_->compareSet(key, current, value);
  }
  int64_t add(const std::string& key, int64_t value) override {
    return inner_->add(key, value);
  }
  bool deleteKey(const std::string& key) override {
    return inner_->deleteKey(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    return inner_->check(keys);
  }
  int64_t getNumKeys() override { return inner_->getNumKeys(); }

 private:
  const c10::intrusive_ptr<c10d::Store> inner_;
  const std::shared_ptr<const std::atomic<bool>> stopped_;
};

// Tells the starts of a world apart in a store that outlives them, as that of
// torchrun's agent does. Each start has another number, which its rank 0 draws.
// The other ranks ask for it with a random token, so that what ranks of earlier
// starts have written means nothing to them. A start may have another number of
// ranks than the one before. Not thread-safe.
class Starts {
 public:
  // `store`: must have append(). `rank`: this rank.
  Starts(c10::intrusive_ptr<c10d::Store> store, int rank);

  // Returns the number of this start, the same in each call. On rank 0 it is
  // new; other ranks block until rank 0 has answered. Returns nullopt if
  // `deadline` has passed.
  std::optional<int64_t> number(std::chrono::steady_clock::time_point deadline);

  // On rank 0: answers the ranks that have asked by now. Call it repeatedly
  // until all ranks are there. Does nothing on other ranks.
  // `check`: called when there are questions; throws if this start has failed.
  // A rank that comes again after a failure must be answered by the next start.
  void answer(const std::function<void()>& check = [] {});

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  std::optional<int64_t> number_;
  std::size_t answered_ = 0;  // bytes of the questions
};

}  // namespace gpipe::internal
