#include "gpipe/distributed/world/secured_store.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/world/link_conversion.h"
#include "gpipe/distributed/world/store_text.h"

namespace gpipe::internal {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{10};

class SecuredStore final : public c10d::Store {
 public:
  using Call = std::function<StoreReply(const StoreRequest&)>;
  using Kind = StoreRequest::Kind;

  explicit SecuredStore(Call call) : call_(std::move(call)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    auto copy = c10::make_intrusive<SecuredStore>(call_);
    copy->setTimeout(timeout_);
    return copy;
  }

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    call({Kind::kSet, key, text_of(value), "", 0});
  }

  std::vector<uint8_t> compareSet(
      const std::string& key, const std::vector<uint8_t>& expected,
      const std::vector<uint8_t>& desired) override {
    return bytes_of(
        call({Kind::kCompareSet, key, text_of(expected), text_of(desired), 0}));
  }

  std::vector<uint8_t> get(const std::string& key) override {
    wait({key}, timeout_);
    return bytes_of(call({Kind::kGet, key, "", "", 0}));
  }

  int64_t add(const std::string& key, int64_t value) override {
    return call({Kind::kAdd, key, "", "", value}).number;
  }

  bool deleteKey(const std::string& key) override {
    return call({Kind::kDelete, key, "", "", 0}).found;
  }

  bool check(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      if (!call({Kind::kGet, key, "", "", 0}).found) return false;
    }
    return true;
  }

  int64_t getNumKeys() override {
    return call({Kind::kCount, "", "", "", 0}).number;
  }

  void wait(const std::vector<std::string>& keys) override {
    wait(keys, timeout_);
  }

  void wait(const std::vector<std::string>& keys,
            const milliseconds& timeout) override {
    const auto begin = std::chrono::steady_clock::now();
    while (!check(keys)) {
      TORCH_CHECK_WITH(DistStoreError,
                       std::chrono::steady_clock::now() - begin < timeout,
                       "the store has no key '", keys.front(), "' after ",
                       timeout.count(), " ms");
      std::this_thread::sleep_for(kLook);
    }
  }

 private:
  static std::vector<uint8_t> bytes_of(const StoreReply& reply) {
    return {reply.value.begin(), reply.value.end()};
  }
  StoreReply call(const StoreRequest& request) {
    return with_c10_errors([&] { return call_(request); });
  }

  const Call call_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> secured_store(
    std::function<StoreReply(const StoreRequest&)> call) {
  return c10::make_intrusive<SecuredStore>(std::move(call));
}

}  // namespace gpipe::internal
