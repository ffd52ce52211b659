#include "gpipe/distributed/world/mesh_group.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "gpipe/distributed/links/link_error.h"
#include "gpipe/distributed/world/link_conversion.h"
#include "gpipe/distributed/world/store_text.h"

namespace gpipe::internal {
namespace {

using std::chrono::milliseconds;

class MeshWork final : public c10d::Work {
 public:
  MeshWork(int rank, c10d::OpType type, std::shared_ptr<Transfer> transfer)
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

}  // namespace

MeshGroup::MeshGroup(MeshOptions options)
    : RankGroup(options.rank, options.size), mesh_(with_c10_errors([&] {
        return std::make_unique<Mesh>(std::move(options));
      })) {}

MeshGroup::~MeshGroup() = default;

c10::intrusive_ptr<c10d::Work> MeshGroup::send(std::vector<at::Tensor>& tensors,
                                               int to, int tag) {
  return start(c10d::OpType::SEND, tensors,
               [&](const at::Tensor& bytes, std::shared_ptr<const void> owner) {
                 return mesh_->link(to).send(tag, bytes.const_data_ptr(),
                                             bytes.nbytes(), std::move(owner));
               });
}

c10::intrusive_ptr<c10d::Work> MeshGroup::recv(std::vector<at::Tensor>& tensors,
                                               int from, int tag) {
  return start(c10d::OpType::RECV, tensors,
               [&](const at::Tensor& bytes, std::shared_ptr<const void> owner) {
                 return mesh_->link(from).receive(tag, bytes.mutable_data_ptr(),
                                                  bytes.nbytes(),
                                                  std::move(owner));
               });
}

template <typename Begin>
c10::intrusive_ptr<c10d::Work> MeshGroup::start(
    c10d::OpType type, const std::vector<at::Tensor>& tensors, Begin begin) {
  TORCH_CHECK_VALUE(
      tensors.size() == 1 && tensors[0].is_cpu() && tensors[0].is_contiguous(),
      "a message is one contiguous tensor on the CPU");
  const at::Tensor& bytes = tensors[0];
  return with_c10_errors([&]() -> c10::intrusive_ptr<c10d::Work> {
    return c10::make_intrusive<MeshWork>(
        rank_, type, begin(bytes, std::make_shared<at::Tensor>(bytes)));
  });
}

PeerLink* MeshGroup::link_with(int rank) {
  try {
    return &mesh_->link(rank);
  } catch (const LinkError&) {
    return nullptr;
  }
}

c10::intrusive_ptr<MeshGroup> mesh_group(const WorldOptions& options,
                                         const Admission& admission,
                                         c10::intrusive_ptr<c10d::Store> store,
                                         const std::string& own) {
  const auto key = [](int rank) { return "place/" + std::to_string(rank); };
  MeshOptions mesh;
  mesh.rank = options.rank;
  mesh.size = options.size;
  mesh.address = own;
  mesh.credentials = admission.credentials;
  mesh.refusals = admission.refusals;
  mesh.shares_memory = options.shares_memory;
  mesh.timeout = options.timeout;
  mesh.tell = [=, rank = options.rank](const std::string& text) {
    store->set(key(rank), bytes_of(text));
  };
  mesh.ask = [=](int rank) { return text_at(*store, key(rank)); };
  return c10::make_intrusive<MeshGroup>(std::move(mesh));
}

}  // namespace gpipe::internal
