#include "gpipe/schedule/named.h"

#include "gpipe/base/text.h"
#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/one_forward_one_backward.h"
#include "gpipe/schedule/v_shape.h"

namespace gpipe {
namespace {

struct Entry {
  const char* name;
  int stages_per_rank;  // 0: any number
  Schedule (*make)(int ranks, int microbatches, int stages_per_rank);
};

using Fixed = Schedule (*)(int ranks, int microbatches);

template <Fixed generator>
Schedule fixed(int ranks, int microbatches, int /*stages_per_rank*/) {
  return generator(ranks, microbatches);
}

Schedule interleaved_by_default(int ranks, int microbatches,
                                int stages_per_rank) {
  return interleaved(ranks, microbatches, stages_per_rank);
}

constexpr Entry kSchedules[] = {
    {"fill-drain", 1, fixed<fill_drain>},
    {"1f1b", 1, fixed<one_forward_one_backward>},
    {"eager-1f1b", 1, fixed<eager_one_forward_one_backward>},
    {"interleaved-1f1b", 0, interleaved_by_default},
    {"looped-bfs", 0, looped_bfs},
    {"zb-h1", 1, fixed<zero_bubble_h1>},
    {"zb-h2", 1, fixed<zero_bubble_h2>},
    {"zb-interleaved", 0, zero_bubble_interleaved},
    {"zbv", 2, fixed<zero_bubble_v>},
    {"v-half", 2, fixed<v_half>},
    {"v-min", 2, fixed<v_min>},
    {"dualpipe-v", 2, fixed<dual_pipe_v>},
    {"forward-only", 1, fixed<forward_only>},
};

// Returns the names of the schedules that can have `stages_per_rank`; all names
// if it is 0.
std::string list(int stages_per_rank) {
  std::string names;
  for (const Entry& entry : kSchedules) {
    const int takes = entry.stages_per_rank;
    if (stages_per_rank > 0 && takes > 0 && takes != stages_per_rank) continue;
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  return names;
}

const Entry& entry_of(const std::string& name) {
  for (const Entry& entry : kSchedules) {
    if (name == entry.name) return entry;
  }
  internal::refuse("there is no schedule \"", name, "\"; there are ", list(0));
}

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kSchedules) names.push_back(entry.name);
  return names;
}

std::vector<std::string> training_schedule_names() {
  std::vector<std::string> names = schedule_names();
  std::erase(names, "forward-only");
  return names;
}

std::optional<int> fixed_stages_per_rank(const std::string& name) {
  const int stages = entry_of(name).stages_per_rank;
  return stages > 0 ? std::optional<int>(stages) : std::nullopt;
}

Schedule named_schedule(const std::string& name, int ranks, int microbatches,
                        int stages_per_rank) {
  const Entry& entry = entry_of(name);
  internal::check_sizes(ranks, microbatches, stages_per_rank);
  const int takes = entry.stages_per_rank;
  if (takes > 0 && takes != stages_per_rank) {
    internal::refuse(
        name, " has ", takes, takes == 1 ? " stage" : " stages",
        " per rank, not ", stages_per_rank,
        "; these schedules can have that many: ", list(stages_per_rank));
  }
  return entry.make(ranks, microbatches, stages_per_rank);
}

}  // namespace gpipe
