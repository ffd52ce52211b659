// A fuzz target that parses any bytes as the text of a schedule.
#include <stdexcept>

#include "gpipe/schedule/text.h"
#include "gpipe/testing/fuzz_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace gpipe;  // NOLINT: parser and checks
  const std::string_view text = testing::fuzz_text(data, size);
  // Each line end makes a rank, which takes 24 bytes.
  testing::FuzzLimits limits;
  limits.largest.per_byte = 48;
  testing::fuzz_parser<std::invalid_argument>(
      size, limits, [&] { return parse_schedule(text); },
      [](const Schedule& schedule) {
        const std::string csv = to_csv(schedule);
        const Schedule again = parse_schedule(csv);
        testing::fuzz_check(again.ranks == schedule.ranks,
                            "what is written is read again");
        testing::fuzz_check(to_csv(again) == csv,
                            "what is read again is written alike");
      });
  return 0;
}
