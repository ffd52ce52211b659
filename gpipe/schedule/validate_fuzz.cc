// A fuzz target that validates any schedule that can be parsed.
#include <set>
#include <stdexcept>
#include <utility>

#include "gpipe/schedule/order.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/text.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/testing/fuzz_check.h"

namespace {

// Calls `function` with a schedule that is not validated. std::invalid_argument
// is an accepted result.
template <typename Function>
void call(const Function& function, const gpipe::Schedule& schedule) {
  try {
    function(schedule);
  } catch (const std::invalid_argument&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace gpipe;  // NOLINT: parser and checks
  Schedule schedule;
  try {
    schedule = parse_schedule(testing::fuzz_text(data, size));
  } catch (const std::invalid_argument&) {
    return 0;
  }
  call(num_stages, schedule);
  call(num_microbatches, schedule);
  call(rank_of_stage, schedule);
  const auto valid = [&] {
    validate(schedule);
    return true;
  };
  const auto check = [&](bool) {
    std::set<std::pair<int, int>> forwards, all;
    const auto ticks = start_ticks(schedule);
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (const Action& action : schedule.ranks[rank]) {
        const std::pair cell(action.stage, action.microbatch);
        all.insert(cell);
        if (action.kind == ActionKind::kForward) forwards.insert(cell);
      }
      testing::fuzz_check(ticks[rank].size() == schedule.ranks[rank].size(),
                          "every action of a valid schedule runs");
    }
    testing::fuzz_check(
        forwards == all && all.size() == (all.rbegin()->first + 1) *
                                             (all.rbegin()->second + 1ul),
        "every cell of a valid schedule has a forward");
  };
  // Error texts take memory too, since they show a part of the schedule.
  testing::FuzzLimits limits;
  limits.largest = {64, 1 << 14};
  limits.held = {512, 1 << 16};
  testing::fuzz_parser<std::invalid_argument>(size, limits, valid, check);
  return 0;
}
