// A fuzz target that parses any bytes as the text of a schedule, and validates
// each schedule that can be parsed.
#include <set>
#include <stdexcept>
#include <utility>

#include "gpipe/schedule/order.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/text.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/testing/fuzz_check.h"

namespace gpipe {
namespace {

void check_text(const Schedule& schedule) {
  const std::string csv = to_csv(schedule);
  const Schedule again = parse_schedule(csv);
  testing::fuzz_check(again.ranks == schedule.ranks,
                      "what is written is read again");
  testing::fuzz_check(to_csv(again) == csv,
                      "what is read again is written alike");
}

// Calls `function` with a schedule that is not validated. std::invalid_argument
// is an accepted result.
template <typename Function>
void call(const Function& function, const Schedule& schedule) {
  try {
    function(schedule);
  } catch (const std::invalid_argument&) {
  }
}

void check_valid(const Schedule& schedule) {
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
}

void check_parsed(std::size_t size, const Schedule& schedule) {
  check_text(schedule);
  call(num_stages, schedule);
  call(num_microbatches, schedule);
  call(rank_of_stage, schedule);
  // Error texts take memory too, since they show a part of the schedule.
  testing::FuzzLimits limits;
  limits.largest = {64, 1 << 14};
  limits.held = {512, 1 << 16};
  testing::fuzz_parser<std::invalid_argument>(
      size, limits,
      [&] {
        validate(schedule);
        return true;
      },
      [&](bool) { check_valid(schedule); });
}

}  // namespace
}  // namespace gpipe

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace gpipe;  // NOLINT: parser and checks
  const std::string_view text = testing::fuzz_text(data, size);
  // Each line end makes a rank, which takes 24 bytes.
  testing::FuzzLimits limits;
  limits.largest.per_byte = 48;
  testing::fuzz_parser<std::invalid_argument>(
      size, limits, [&] { return parse_schedule(text); },
      [&](const Schedule& schedule) { check_parsed(size, schedule); });
  return 0;
}
