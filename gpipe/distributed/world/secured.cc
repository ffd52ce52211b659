#include "gpipe/distributed/world/secured.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/links/link_error.h"
#include "gpipe/distributed/links/peer_link.h"
#include "gpipe/distributed/world/store_text.h"

namespace gpipe::internal {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{10};

// Returns the result of `part`; a LinkError becomes a c10::DistNetworkError.
template <typename Part>
auto with_c10_errors(Part part) {
  try {
    return part();
  } catch (const LinkError& error) {
    C10_THROW_ERROR(DistNetworkError, error.what());
  }
}

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

class SecuredWork final : public c10d::Work {
 public:
  SecuredWork(int rank, c10d::OpType type, std::shared_ptr<Transfer> transfer)
      : c10d::Work(rank, type), transfer_(std::move(transfer)) {}

  bool isCompleted() override { return transfer_->is_over(); }

  bool wait(milliseconds timeout) override {
    return with_c10_errors([&] {
      return transfer_->wait(timeout == kNoTimeout
                                 ? std::nullopt
                                 : std::optional<milliseconds>(timeout));
    });
  }

  void abort() override { transfer_->abort(); }

 private:
  const std::shared_ptr<Transfer> transfer_;
};

const at::Tensor& checked(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(
      tensors.size() == 1 && tensors[0].is_cpu() && tensors[0].is_contiguous(),
      "a message is one contiguous tensor on the CPU");
  return tensors[0];
}

}  // namespace

c10::intrusive_ptr<c10d::Store> secured_store(
    std::function<StoreReply(const StoreRequest&)> call) {
  return c10::make_intrusive<SecuredStore>(std::move(call));
}

SecuredGroup::SecuredGroup(MeshOptions options)
    : c10d::Backend(options.rank, options.size), mesh_(with_c10_errors([&] {
        return std::make_unique<Mesh>(std::move(options));
      })) {}

SecuredGroup::~SecuredGroup() = default;

c10::intrusive_ptr<c10d::Work> SecuredGroup::send(
    std::vector<at::Tensor>& tensors, int to, int tag) {
  const at::Tensor bytes = checked(tensors);
  return with_c10_errors([&]() -> c10::intrusive_ptr<c10d::Work> {
    return c10::make_intrusive<SecuredWork>(
        rank_, c10d::OpType::SEND,
        mesh_->link(to).send(tag, bytes.const_data_ptr(), bytes.nbytes(),
                             std::make_shared<at::Tensor>(bytes)));
  });
}

c10::intrusive_ptr<c10d::Work> SecuredGroup::recv(
    std::vector<at::Tensor>& tensors, int from, int tag) {
  const at::Tensor bytes = checked(tensors);
  return with_c10_errors([&]() -> c10::intrusive_ptr<c10d::Work> {
    return c10::make_intrusive<SecuredWork>(
        rank_, c10d::OpType::RECV,
        mesh_->link(from).receive(tag, bytes.mutable_data_ptr(), bytes.nbytes(),
                                  std::make_shared<at::Tensor>(bytes)));
  });
}

}  // namespace gpipe::internal
