// c10d's store and group of ranks over secured connections.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "gpipe/distributed/links/mesh.h"
#include "gpipe/distributed/links/store_wire.h"

namespace gpipe::internal {

// Returns a store whose requests `call` answers. `call` is thread-safe and
// throws LinkError if the connection is broken; the store then throws
// c10::DistNetworkError. Waits do not block other callers.
c10::intrusive_ptr<c10d::Store> secured_store(
    std::function<StoreReply(const StoreRequest&)> call);

// A c10d backend with sends and receives over secured connections, which are
// made when they are first used (mesh.h), and without collective operations.
// Errors of Mesh and of transfers are c10::DistNetworkErrors. A wait() without
// a timeout has no limit once there is a connection. Thread-safe.
class SecuredGroup final : public c10d::Backend {
 public:
  explicit SecuredGroup(MeshOptions options);
  ~SecuredGroup() override;

  const std::string getBackendName() const override { return "gpipe-secured"; }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors,
                                      int from, int tag) override;

  // See Mesh::stop_connecting().
  void stop_connecting() { mesh_->stop_connecting(); }

 private:
  const std::unique_ptr<Mesh> mesh_;
};

}  // namespace gpipe::internal
