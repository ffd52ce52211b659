#include "gpipe/distributed/runner/route.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpipe::internal {
namespace {

// Returns the outputs of an action, in the order in which StepPass sends them:
// skip tensors first.
std::vector<StageEdge> made_by(const Action& action, int64_t stages,
                               const std::vector<SkipLink>& links) {
  std::vector<StageEdge> made;
  const int64_t j = action.stage, i = action.microbatch;
  const bool forward = action.kind == ActionKind::kForward;
  const bool backward = action.kind == ActionKind::kBackward ||
                        action.kind == ActionKind::kBackwardInput;
  if (!forward && !backward) return made;
  for (std::size_t k = 0; k < links.size(); ++k) {
    const SkipLink& link = links[k];
    if ((forward ? link.from : link.to) != j) continue;
    made.push_back({backward, j, forward ? link.to : link.from,
                    static_cast<int64_t>(k), i});
  }
  const int64_t next = forward ? j + 1 : j - 1;
  if (next >= 0 && next < stages) made.push_back({backward, j, next, -1, i});
  return made;
}

}  // namespace

std::vector<MessageEdges> route(const Schedule& schedule,
                                const std::vector<int>& rank_of_stage,
                                const std::vector<SkipLink>& links, int from,
                                int to) {
  std::vector<MessageEdges> bundles;
  for (const Action& action : schedule.ranks[from]) {
    MessageEdges edges;
    for (const StageEdge& each :
         made_by(action, static_cast<int64_t>(rank_of_stage.size()), links)) {
      if (rank_of_stage[each.to] == to) edges.push_back(each);
    }
    if (!edges.empty()) bundles.push_back(std::move(edges));
  }
  return bundles;
}

}  // namespace gpipe::internal
