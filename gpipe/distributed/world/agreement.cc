#include "gpipe/distributed/world/agreement.h"

#include <algorithm>
#include <cstddef>

#include "gpipe/distributed/world/all_gather.h"
#include "gpipe/distributed/world/bytes.h"

namespace gpipe::internal {
namespace {

// Returns how the terms of `rank` differ from those of rank 0; "" if they are
// equal. Both are names and values in turn.
std::string difference(const std::vector<std::string>& theirs,
                       const std::vector<std::string>& ours, int rank) {
  const std::size_t most = std::max(theirs.size(), ours.size());
  for (std::size_t k = 0; k < most; k += 2) {
    if (k + 1 >= theirs.size() || k + 1 >= ours.size() ||
        theirs[k] != ours[k]) {
      return "it is of another version of gpipe than rank 0";
    }
    if (theirs[k + 1] == ours[k + 1]) continue;
    return ours[k] + " is " + theirs[k + 1] + " on rank " +
           std::to_string(rank) + ", but " + ours[k + 1] + " on rank 0";
  }
  return "";
}

}  // namespace

void agree(Communicator& world, int tag, const Terms& terms) {
  std::string mine;
  for (const auto& [name, value] : terms) {
    put_text(mine, name);
    put_text(mine, value);
  }
  const auto all =
      all_gather(world, tag, mine, "comparing what the ranks were given");
  // Every rank compares all ranks with rank 0, so that all find the same
  // difference.
  const auto first = take_texts(all.front());
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string what = difference(take_texts(all[rank]), first, rank);
    if (what.empty()) continue;
    world.fail({Fault::kDisagree, rank, world.rank(), "", what});
    world.check();
  }
}

}  // namespace gpipe::internal
