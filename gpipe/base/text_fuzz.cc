// Fuzz target: parses any bytes as a list in a flag, and as a choice.
#include <absl/strings/str_join.h>

#include <algorithm>
#include <stdexcept>

#include "gpipe/base/text.h"
#include "gpipe/testing/fuzz_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace gpipe;  // NOLINT: parsers
  using gpipe::testing::fuzz_check;
  using gpipe::testing::fuzz_parser;
  const std::string_view text = gpipe::testing::fuzz_text(data, size);

  // Each comma adds a string of 32 bytes; a growing list doubles its capacity.
  gpipe::testing::FuzzLimits limits;
  limits.largest.per_byte = 64;

  const std::vector<std::string> entries = split_list(text);
  const auto commas = static_cast<std::size_t>(std::ranges::count(text, ','));
  fuzz_check(entries.size() == (text.empty() ? 0 : commas + 1),
             "a list has an entry between any two commas");
  fuzz_check(entries == std::vector<std::string>{""} ||
                 split_list(absl::StrJoin(entries, ",")) == entries,
             "a list is split as it was joined");

  fuzz_parser<std::invalid_argument>(
      size, limits, [&] { return parse_positive_list("balance", text); },
      [&](const std::vector<int64_t>& values) {
        fuzz_check(values.size() == entries.size(), "a number for each entry");
        fuzz_check(std::ranges::all_of(values,
                                       [](int64_t value) { return value > 0; }),
                   "all numbers are above 0");
        fuzz_check(parse_positive_list("balance", absl::StrJoin(values, ",")) ==
                       values,
                   "numbers are read as they were written");
      });

  fuzz_parser<std::invalid_argument>(
      size, limits, [&] { return parse_numbers("balance", text); },
      [&](const std::vector<int64_t>& numbers) {
        fuzz_check(
            parse_numbers("balance", absl::StrJoin(numbers, ",")) == numbers,
            "numbers are read as they were written");
      });
  fuzz_parser<std::invalid_argument>(
      size, limits, [&] { return parse_amounts("forward", text); },
      [&](const std::vector<double>& amounts) {
        fuzz_check(
            std::ranges::all_of(amounts, [](double each) { return each >= 0; }),
            "all amounts are 0 or more");
      });

  const std::vector<std::string> choices = {"text", "csv", "json"};
  fuzz_parser<std::invalid_argument>(
      size, limits, [&] { return parse_choice("format", text, choices); },
      [&](std::size_t choice) {
        fuzz_check(choices.at(choice) == text, "the choice is the text");
      });
  return 0;
}
