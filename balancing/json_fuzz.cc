// Fuzz target: arbitrary bytes as the JSON of a profile, of a plan, and of
// machines.
#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

#include "balancing/machines.h"
#include "balancing/plan.h"
#include "balancing/profile.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/fuzz_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace gpipe::balancing;  // NOLINT: parser
  namespace testing = gpipe::testing;
  const std::string text(testing::fuzz_text(data, size));
  testing::fuzz_parser<c10::ValueError>(
      size, {}, [&] { return profile_from_json(text, "it"); },
      [](const Profile& profile) {
        const std::string json = to_json(profile);
        const Profile again = profile_from_json(json, "again");
        testing::fuzz_check(to_json(again) == json,
                            "what is written is read again");
      });
  // A few bytes may describe 1024 machines, with a link for each pair.
  const testing::FuzzLimits limits = {{64, 1 << 25}, {256, 1 << 26}};
  testing::fuzz_parser<c10::ValueError>(
      size, limits, [&] { return plan_from_json(text, "it"); },
      [](const Plan& plan) {
        const std::string json = to_json(plan);
        const Plan again = plan_from_json(json, "again");
        testing::fuzz_check(to_json(again) == json,
                            "what is written is read again");
        constexpr int64_t kSmall = 4096;  // cells
        if (static_cast<int64_t>(plan.balance.size()) * plan.chunks <= kSmall) {
          gpipe::validate(plan.schedule());
        }
      });
  testing::fuzz_parser<c10::ValueError>(
      size, limits, [&] { return machines_from_json(text, "it"); },
      [](const Machines& machines) {
        testing::fuzz_check(
            machines.links.size() ==
                machines.devices.size() * machines.devices.size(),
            "each pair has a link");
      });
  return 0;
}
