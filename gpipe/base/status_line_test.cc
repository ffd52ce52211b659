#include "gpipe/base/status_line.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gpipe {
namespace {

std::string text_in(std::FILE* file) {
  std::rewind(file);
  std::string text;
  for (int c = std::getc(file); c != EOF; c = std::getc(file)) {
    text += static_cast<char>(c);
  }
  return text;
}

TEST(StatusLineTest, ClockHasHours) {
  EXPECT_EQ(clock_text(3600 * 25 + 61.4), "25:01:01");
  EXPECT_EQ(clock_text(-1), "00:00:00");
  // No int64_t holds these seconds.
  EXPECT_EQ(clock_text(1e19), "277777777777:46:40");
  EXPECT_EQ(clock_text(1, 1e-300), "00:00:01 | 277777777777:46:40 left");
}

TEST(StatusLineTest, ALineThatStaysErasesTheOneThatIsWrittenOver) {
  std::FILE* const file = std::tmpfile();
  std::vector<std::string> lines;
  {
    StatusLine line([&](const std::string& text) { lines.push_back(text); },
                    file, /*terminal=*/true);
    line.say("a");
    line.say("b");
  }
  EXPECT_EQ(lines, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(text_in(file), "\r\x1b[K\r\x1b[K\r\x1b[K");
  std::fclose(file);
}

TEST(StatusLineTest, ElsewhereNothingIsWrittenOverAndUpdatesAreRare) {
  std::FILE* const file = std::tmpfile();
  std::vector<std::string> lines;
  int asked = 0;
  {
    StatusLine line([&](const std::string& text) { lines.push_back(text); },
                    file);
    for (int k = 0; k < 100; ++k) {
      line.update([&] {
        ++asked;
        return std::string("now");
      });
    }
    line.say("end");
  }
  EXPECT_EQ(asked, 0);  // because ten seconds have not passed
  EXPECT_EQ(lines, std::vector<std::string>{"end"});
  EXPECT_EQ(text_in(file), "");
  std::fclose(file);
}

}  // namespace
}  // namespace gpipe
