#include "gpipe/distributed/world/agreement.h"

#include <algorithm>
#include <utility>

#include "gpipe/distributed/world/all_gather.h"
#include "gpipe/distributed/world/bytes.h"

namespace gpipe::internal {
namespace {

std::string encode(const Terms& terms) {
  std::string bytes;
  for (const auto& [name, value] : terms) {
    put_text(bytes, name);
    put_text(bytes, value);
  }
  return bytes;
}

Terms decode(const std::string& bytes) {
  Terms terms;
  for (std::size_t at = 0; at < bytes.size();) {
    std::string name = take_text(bytes, at);
    terms.emplace_back(std::move(name), take_text(bytes, at));
  }
  return terms;
}

// Returns how the terms of `rank` differ from those of rank 0; "" if they are
// equal.
std::string difference(const Terms& theirs, const Terms& ours, int rank) {
  const std::size_t most = std::max(theirs.size(), ours.size());
  for (std::size_t k = 0; k < most; ++k) {
    if (k >= theirs.size() || k >= ours.size() ||
        theirs[k].first != ours[k].first) {
      return "it is of another version of gpipe than rank 0";
    }
    if (theirs[k].second == ours[k].second) continue;
    return ours[k].first + " is " + theirs[k].second + " on rank " +
           std::to_string(rank) + ", but " + ours[k].second + " on rank 0";
  }
  return "";
}

}  // namespace

void agree(Communicator& world, int tag, const Terms& terms) {
  const auto all = all_gather(world, tag, encode(terms),
                              "comparing what the ranks were given");
  // Every rank compares all ranks with rank 0, so that all find the same
  // difference.
  const Terms first = decode(all.front());
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string what = difference(decode(all[rank]), first, rank);
    if (what.empty()) continue;
    world.fail({Fault::kDisagree, rank, world.rank(), "", what});
    world.check();
  }
}

}  // namespace gpipe::internal
