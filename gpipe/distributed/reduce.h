// Sums of gradients over replicas.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "gpipe/distributed/carrier.h"
#include "gpipe/distributed/world.h"

namespace gpipe {

// What becomes a sum. `grad` is of the sizes and the type of `like`, on any
// device; undefined, it counts as zero.
struct Summand {
  at::Tensor like, grad;
};

// About as much of gradients as goes around at a time.
constexpr int64_t kBucketBytes = int64_t{1} << 24;

// Where the buckets of a list end, in ascending order, the last one at its
// size: each has one type and is full with the tensor that brings it to
// `bucket_bytes`.
std::vector<std::size_t> cut_buckets(const std::vector<Summand>& all,
                                     int64_t bucket_bytes = kBucketBytes);

// Adds up over ranks, in the order of `members`, so that all get the same bits,
// and get them again in another run.
//
// Of a bucket each member adds up a part, which it gets from all others and
// gives to all others (a reduce-scatter and an all-gather): with n members each
// sends 2 (n - 1) / n of the bytes, as around a ring, where sums would begin at
// other members for other parts.
//
// Threads: one at a time for a tag.
class Reducer {
 public:
  // `members`: at least two, this rank among them. Sums are made on the
  // carrier's device.
  Reducer(World& world, Carrier& carrier, std::vector<int> members, int tag);

  // c10::Error on all members if they have other lists, of other sizes or
  // types; PeerError.
  void agree(const std::vector<Summand>& all);

  // `bucket`: begin and end, of one type. A gradient that no member has stays
  // undefined; others are replaced, never written to, since they may be
  // somebody else's too. What was sparse is dense then. PeerError.
  void add_up(Summand* begin, Summand* end);

 private:
  void add_up_flat(const at::Tensor& flat);
  // Sends and receives, to and from each other member, what is asked for it.
  void exchange(const std::function<at::Tensor(std::size_t)>& out,
                const std::function<at::Tensor(std::size_t)>& in);

  World& world_;
  Carrier& carrier_;
  const std::vector<int> members_;
  const int tag_;
  std::size_t own_ = 0;  // of members_
};

// agree(), and add_up() for each bucket. Does nothing for a single member.
void all_reduce(World& world, Carrier& carrier, const std::vector<int>& members,
                int tag, std::vector<Summand>& all,
                int64_t bucket_bytes = kBucketBytes);

}  // namespace gpipe
