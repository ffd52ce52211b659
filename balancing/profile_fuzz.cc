// Fuzz target: arbitrary bytes as the JSON of a profile.
#include <c10/util/Exception.h>

#include "balancing/profile.h"
#include "gpipe/testing/fuzz_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace gpipe::balancing;  // NOLINT: parser
  const std::string text(gpipe::testing::fuzz_text(data, size));
  gpipe::testing::fuzz_parser<c10::ValueError>(
      size, {}, [&] { return profile_from_json(text, "it"); },
      [](const Profile& profile) {
        const std::string json = to_json(profile);
        const Profile again = profile_from_json(json, "again");
        gpipe::testing::fuzz_check(to_json(again) == json,
                                   "what is written is read again");
      });
  return 0;
}
