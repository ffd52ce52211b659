#include "gpipe/testing/fuzz/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace gpipe::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string file(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(CorpusTest, IsTheFilesByTheOrderOfTheirNames) {
  const std::string folder = ::testing::TempDir() + "corpus";
  std::filesystem::create_directories(folder + "/folder");
  file("corpus/b", "two\r\n");
  file("corpus/a", std::string("\0one", 4));
  EXPECT_THAT(read_corpus(folder),
              ElementsAre(std::string("\0one", 4), "two\r\n"));
}

TEST(CorpusTest, NamesAFolderWithoutFiles) {
  const std::string folder = ::testing::TempDir() + "nothing";
  for (int k = 0; k < 2; ++k) {
    EXPECT_THAT([&] { read_corpus(folder); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(folder)));
    std::filesystem::create_directories(folder);
  }
}

TEST(CorpusTest, ReadsWordsAsLibFuzzerDoes) {
  const std::string path = file("words.dict",
                                "# of schedules\n"
                                "\n"
                                "\"OVERLAP_F_B\"\n"
                                "end=\"\\x0d\\x0A\"\n"
                                "\"\\\\ and \\\" and \"\"\n");
  EXPECT_THAT(read_dictionary(path),
              ElementsAre("OVERLAP_F_B", "\r\n", "\\ and \" and \""));
}

TEST(CorpusTest, NamesTheLineThatIsNoWord) {
  for (const char* line :
       {"word", "\"", "\"word", "\"\\n\"", "\"\\x1\"", "\"\\x1g\"", "\"\\\""}) {
    const std::string path = file("words.dict", std::string("\"a\"\n") + line);
    EXPECT_THAT([&] { read_dictionary(path); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("line 2")))
        << line;
  }
  EXPECT_THAT([] { read_dictionary("/no/such/file"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("/no/such/file")));
}

}  // namespace
}  // namespace gpipe::testing
