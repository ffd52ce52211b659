// Sums of gradients over replicas.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/distributed/world.h"

namespace gpipe {

// Each of `tensors` becomes the sum of those of all `members`, added in the
// order of `members`, so that all get the same bits, and get them again in
// another run. Undefined ones count as zero; what is undefined everywhere stays
// so. All members give tensors of equal sizes and types, on any devices, which
// are replaced.
//
// They go in buckets of about `bucket_bytes`, of one type each. Of a bucket
// each member adds up a part, which it gets from all others and gives to all
// others (a reduce-scatter and an all-gather): with n members each sends 2 (n -
// 1) / n of the bytes, as around a ring, where sums would begin at other
// members for other parts.
//
// PeerError; c10::Error on all members if they have other numbers of tensors,
// or others of them, before anything is sent. Threads: one at a time for a tag.
void all_reduce(World& world, const std::vector<int>& members, int tag,
                std::vector<at::Tensor*> tensors,
                int64_t bucket_bytes = int64_t{1} << 24);

}  // namespace gpipe
