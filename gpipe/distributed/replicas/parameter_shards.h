// The shards of parameters whose optimizer is spread over replicas.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "gpipe/distributed/replicas/replica_sums.h"

namespace gpipe::internal {

// The parameters of one rank, each cut along dimension 0 into one shard per
// replica (ZeRO stage 1, Rajbhandari et al., arXiv 1910.02054). The optimizer
// of a replica gets the shards that the replica owns. A shard is a leaf that
// shares the parameter's memory, so a step of the optimizer changes the
// parameter's rows in place. spread() brings the rows of the other replicas.
//
// Not thread-safe.
class ParameterShards {
 public:
  // `parameters`: all different. This replica is member `own` of `members`.
  ParameterShards(std::vector<at::Tensor> parameters, std::size_t members,
                  std::size_t own);

  // Returns the shards that this replica owns of the parameters that require a
  // gradient, in their order; none for a parameter with fewer rows than
  // replicas, if this replica owns none of them. If a parameter has got other
  // memory (Module::to(dtype)), its shard follows.
  std::vector<at::Tensor> own();

  // Returns the shard of `parameter`; undefined if this replica owns none of
  // its rows.
  at::Tensor shard_of(const at::Tensor& parameter);
  // Returns whether `tensor` is one of the parameters.
  bool has(const at::Tensor& tensor) const {
    return numbers_.count(tensor.unsafeGetTensorImpl()) > 0;
  }

  // Brings the rows of the other replicas here, and sends this replica's; not
  // those of frozen parameters, which are the same on all of them. Blocks until
  // all have called. `reducer`: of the same members. Throws PeerError if the
  // world has failed.
  void spread(Reducer& reducer);

 private:
  // Makes the shard of parameter `k` a view of its present memory.
  void follow(std::size_t k);

  std::vector<at::Tensor> parameters_, shards_;
  std::unordered_map<c10::TensorImpl*, std::size_t> numbers_;
  const std::size_t members_, own_;
};

}  // namespace gpipe::internal
