// A store of c10d whose waits can be ended.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

namespace gpipe::internal {

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

}  // namespace gpipe::internal
