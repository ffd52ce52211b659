// c10d's group of ranks over a mesh of connections.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "gpipe/distributed/links/mesh.h"
#include "gpipe/distributed/links/peer_link.h"
#include "gpipe/distributed/world/admission.h"
#include "gpipe/distributed/world/rank_group.h"
#include "gpipe/distributed/world/world_options.h"

namespace gpipe::internal {

// The connections of mesh.h. Errors of Mesh and of transfers are
// c10::DistNetworkErrors.
class MeshGroup final : public RankGroup {
 public:
  explicit MeshGroup(MeshOptions options);
  ~MeshGroup() override;

  const std::string getBackendName() const override { return "gpipe"; }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors,
                                      int from, int tag) override;

  void stop_connecting() override { mesh_->stop_connecting(); }
  PeerLink* link_with(int rank) override;

 private:
  // Returns the work of the transfer that `begin` starts with the bytes of
  // `tensors` and with what keeps them alive.
  template <typename Begin>
  c10::intrusive_ptr<c10d::Work> start(c10d::OpType type,
                                       const std::vector<at::Tensor>& tensors,
                                       Begin begin);

  const std::unique_ptr<Mesh> mesh_;
};

// Returns a group of all ranks, which tell each other by `store` where they
// listen: each at its address `own`. Throws c10::DistNetworkError.
c10::intrusive_ptr<MeshGroup> mesh_group(const WorldOptions& options,
                                         const Admission& admission,
                                         c10::intrusive_ptr<c10d::Store> store,
                                         const std::string& own);

}  // namespace gpipe::internal
