// The norm of gradients that are spread over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "gpipe/distributed/world/communicator.h"

namespace gpipe::internal {

// Scales the gradients of the parameters of all `members` so that their norm is
// at most `max_norm`; returns the norm before. On CPUs it gives the same
// bits as torch::nn::utils::clip_grad_norm_() on all these parameters in the
// order of their layers, because it runs the same operators on the same
// numbers. It adds up the norms on the host, so the last bits may differ on
// accelerators. All ranks of the world call it.
//
// `own`: this rank's parameters, each with the index of its layer. Parameters
// without a gradient are skipped.
// `members`: ranks of the world, this rank among them.
// `tag`: see all_gather().
// `of_shards`: whether `own` are parts of parameters.
//
// Throws c10::ValueError on all ranks, and sets `agreed`, if they have other
// values of `max_norm` or `norm_type`, if `max_norm` is negative or NaN, or if
// `norm_type` is 0, which counts parameters, of shards; gradients are then as
// before. Throws PeerError if the world has failed. Threads: one call at a time
// for each `tag`.
double clip_grad_norm(Communicator& world, const std::vector<int>& members,
                      int tag,
                      const std::vector<std::pair<int64_t, at::Tensor>>& own,
                      double max_norm, double norm_type, bool of_shards,
                      bool& agreed);

}  // namespace gpipe::internal
