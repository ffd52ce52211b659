#include "train_program/parse.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpipe/text/lists.h"
#include "weights/testing/files.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::value_error_of;

TEST(ParseTest, Numbers) {
  EXPECT_EQ(parse_numbers("balance", "10,2"), (std::vector<int64_t>{10, 2}));
  EXPECT_EQ(join({10, 2}), "10,2");
  EXPECT_TRUE(parse_numbers("balance", "").empty());
  for (const char* text : {"1,,2", "1.5", "a", "1 2"}) {
    EXPECT_NE(value_error_of([&] {
                parse_numbers("balance", text);
              }).find(std::string("--balance=") + text),
              std::string::npos)
        << text;
  }
}

TEST(ParseTest, Devices) {
  EXPECT_TRUE(parse_devices("").empty());
  EXPECT_EQ(parse_devices("cpu,cpu").size(), 2);
  for (const char* text : {"cpu,gpu", "cuda:77", "cpu:0:1"}) {
    EXPECT_NE(value_error_of([&] { parse_devices(text); }).find("it has cpu"),
              std::string::npos)
        << text;
  }
  EXPECT_EQ(first_device({c10::Device("cpu")}), c10::Device("cpu"));
}

TEST(ParseTest, CheckpointModes) {
  for (const Checkpoint mode :
       {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
    EXPECT_EQ(parse_checkpoint(to_string(mode)), mode);
  }
  EXPECT_NE(value_error_of([] {
              parse_checkpoint("some");
            }).find("never, except_last or always"),
            std::string::npos);
}

}  // namespace
}  // namespace gpipe::train_program
