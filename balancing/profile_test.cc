#include "balancing/profile.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "balancing/profile/testing.h"
#include "gpipe/testing/layers.h"

namespace gpipe::balancing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

Profile measured() {
  return profile(Sequential(Linear(4, 16), ReLU(), Linear(16, 2)),
                 torch::ones({8, 4}), TimeOptions().timeout(0));
}

TEST(ProfileTest, HasTimesAndMemoryOfEachLayer) {
  const Profile result = measured();
  EXPECT_EQ(result.device, "cpu");
  EXPECT_EQ(result.rows, 8);
  EXPECT_THAT(result.names, ElementsAre("0", "1", "2"));
  ASSERT_EQ(result.times.size(), 3);
  EXPECT_GT(result.times[0].forward, 0);
  EXPECT_GT(result.times[0].backward, 0);
  EXPECT_EQ(result.memory.layers[0].parameter_bytes, 320);
}

// As those of a mini-batch whose last element every micro-batch gets whole.
TEST(ProfileTest, HasTheRowsOfTheFirstElement) {
  using Pair = std::tuple<torch::Tensor, torch::Tensor>;
  const auto add_sum = testing::layer<torch::Tensor, Pair>(
      [](Pair both) { return std::get<0>(both) + std::get<1>(both).sum(); });
  const Profile result = profile(
      Sequential(add_sum), Pair(torch::ones({8, 4}), torch::ones({16, 16})),
      TimeOptions().timeout(0));
  EXPECT_EQ(result.rows, 8);
}

TEST(ProfileTest, IsReadAsItWasWritten) {
  Profile original = measured();
  original.memory.skips.push_back({0, 2, 77});
  original.times[1].forward = 0.1 + 0.2;  // needs all digits
  original.times[0].accumulate = 0.25;
  original.times[2].backward_input = 0.5;
  const std::string path = ::testing::TempDir() + "profile.json";
  write_profile(original, path);
  const Profile read = read_profile(path);
  EXPECT_EQ(to_json(read), to_json(original));
  EXPECT_EQ(read.times[1].forward, 0.1 + 0.2);
  EXPECT_EQ(read.times[0].accumulate, 0.25);
  EXPECT_EQ(read.times[2].backward_input, 0.5);
  EXPECT_EQ(read.times[2].backward_weight, 0);
  EXPECT_EQ(read.memory.skips[0].bytes, 77);
  for (int64_t first = 0; first < 3; ++first) {
    for (int64_t last = first + 1; last <= 3; ++last) {
      EXPECT_EQ(saved_bytes(read.memory, first, last),
                saved_bytes(original.memory, first, last));
      EXPECT_EQ(incoming_bytes(read.memory, first, last),
                incoming_bytes(original.memory, first, last));
      EXPECT_EQ(bytes_for_weights(read.memory, first, last),
                bytes_for_weights(original.memory, first, last));
    }
  }
  EXPECT_GT(bytes_for_weights(read.memory, 0, 3), 0);
}

TEST(ProfileTest, IsWrittenOnlyWithAllPartsOfEachLayer) {
  Profile profile;
  profile.names = {"a", "b"};
  profile.times.resize(1);
  profile.memory.layers.resize(2);
  EXPECT_THAT([&] { to_json(profile); },
              ThrowsMessage<std::invalid_argument>(
                  "a profile has 2 names, 1 times and the memory of 2 layers: "
                  "give all three for each layer"));
}

TEST(ProfileTest, IsWrittenOnlyWithTensorsOfItsLayers) {
  Profile profile;
  profile.names = {"a", "b"};
  profile.times.resize(2);
  profile.memory.layers.resize(2);
  for (const std::vector<int64_t>& savers :
       std::vector<std::vector<int64_t>>{{7}, {-1}, {0, 2}}) {
    profile.memory.saved = {{1 << 30, savers}};
    EXPECT_THROW(to_json(profile), std::out_of_range);
  }
}

TEST(ProfileTest, IsWrittenOnlyWithNamesInUtf8) {
  Profile profile;
  profile.names = {"\xff"};
  profile.times.resize(1);
  profile.memory.layers.resize(1);
  EXPECT_THAT([&] { to_json(profile); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("the name of a layer is not UTF-8")));
}

TEST(ProfileTest, KeepsTheOperatorsInItsFile) {
  const Profile original = measured();
  const std::string json = to_json(original);
  EXPECT_THAT(json, HasSubstr("\"kept_by\": {\n    \"ReluBackward0\": 512\n"));
  const Profile read = profile_from_json(json, "mine");
  ASSERT_EQ(read.memory.layers[1].operators.size(), 1);
  EXPECT_EQ(read.memory.layers[1].operators[0].name, "ReluBackward0");
  EXPECT_EQ(read.memory.layers[1].operators[0].bytes, 8 * 16 * 4);
}

TEST(ProfileTest, PrintsTheOperatorsThatKeepMost) {
  Profile result;
  result.names = {"a", "without", "b"};
  result.memory.layers.resize(3);
  result.memory.layers[0].operators = {{"Small", 512}, {"Large", 2048}};
  result.memory.layers[2].operators = {{"One", 1024}, {"Two", 1024}, {"Z", 1}};
  EXPECT_EQ(kept_text(result, 2),
            "  layer      keeps  by\n"
            "  a        2.5 KiB  Large 2 KiB, Small 512 B\n"
            "  b      2.001 KiB  One 1 KiB, Two 1 KiB, ...\n");
}

std::string text(const std::string& rest) {
  return "{\"format\": \"gpipe profile 1\", " + rest + "}";
}

TEST(ProfileTest, CanBeWrittenByAPerson) {
  const Profile result = profile_from_json(text(R"("layers": [
          {"name": "a", "forward_seconds": 1, "saved_bytes": 10},
          {"name": "b", "backward_seconds": 2.5}, {"name": "c"}],
        "skips": [{"stashed_by": "a", "popped_by": "c", "bytes": 5}],
        "saved_by_several": [{"bytes": 7, "layers": ["c", "b"]}])"),
                                           "mine");
  EXPECT_THAT(result.names, ElementsAre("a", "b", "c"));
  EXPECT_EQ(result.times[0].forward, 1);
  EXPECT_EQ(result.times[1].total(), 2.5);
  EXPECT_EQ(saved_bytes(result.memory, 0, 3), 17);
  EXPECT_EQ(saved_bytes(result.memory, 1, 2), 7);
  EXPECT_EQ(incoming_bytes(result.memory, 1, 3), 5);
}

TEST(ProfileTest, NamesWhatIsWrongWithAFile) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"", {"parse error at line 1, column 1"}},
      {"{\n \"a\": }", {"parse error at line 2, column 7"}},
      {"[]", {"object"}},
      {"{}", {"no \"format\""}},
      {"{\"format\": \"other\"}", {"other", "gpipe profile 1"}},
      {text("\"rows\": 1.5"), {"rows", "1.5", "whole number"}},
      {text("\"rows\": -1"), {"rows", "-1"}},
      {text("\"rows\": 1e999"), {"1e999"}},
      {text("\"layers\": " + std::string(1000000, '[')), {"levels of nesting"}},
      {text(R"("layers": [{"name": [[0]]}])"), {"levels of nesting"}},
      {text("\"lines\": 1"), {"lines", "known here are format, "}},
      {text("\"layers\": {}"), {"layers", "list"}},
      {text("\"layers\": [7]"), {"layer 0", "7", "object"}},
      {text("\"layers\": [{}]"), {"layer 0", "no \"name\""}},
      {text(R"("layers": [{"name": "a"}, {"name": "a"}])"), {"'a'", "two"}},
      {text(R"("layers": [{"name": "a", "forward_seconds": -1}])"),
       {"layer 'a'", "forward_seconds", "-1", "at least 0"}},
      {text(R"("layers": [{"name": "a", "forward_seconds": "1"}])"),
       {"layer 'a'", "\"1\"", "number of seconds"}},
      {text(R"("layers": [{"name": "a", "output_bytes": 1e30}])"),
       {"output_bytes", "2^62"}},
      {text(R"("layers": [{"name": "a", "kept_by": []}])"),
       {"layer 'a'", "kept_by", "object"}},
      {text(R"("layers": [{"name": "a", "kept_by": {"Mul": -1}}])"),
       {"layer 'a'", "kept_by", "Mul", "-1"}},
      {text(R"("layers": [{"name": "a", "weight": 1}])"),
       {"layer 'a'", "weight"}},
      {text(R"("layers": [{"name": "a"}, {"name": "b"}],
               "skips": [{"stashed_by": "b", "popped_by": "a"}])"),
       {"skip 0", "'a'", "must come after 'b'"}},
      {text(R"("skips": [{"stashed_by": "x", "popped_by": "a"}])"),
       {"skip 0", "no layer 'x'"}},
      {text(R"("saved_by_several": [{"bytes": 1, "layers": ["x"]}])"),
       {"saved_by_several 0", "no layer 'x'"}},
      {text(R"("saved_by_several": [{"bytes": 1, "layers": [3]}])"),
       {"saved_by_several 0", "3"}},
      {text(R"("saved_by_several": [{"bytes": 1, "layers": []}])"),
       {"saved_by_several 0", "two different layers"}},
      {text(R"("layers": [{"name": "a"}],
               "saved_by_several": [{"bytes": 1, "layers": ["a"]}])"),
       {"saved_by_several 0", "two different layers"}},
      {text(R"("layers": [{"name": "a"}, {"name": "b"}],
               "saved_by_several": [{"bytes": 1, "layers": ["b", "a", "b"]}])"),
       {"saved_by_several 0", "two different layers"}},
  };
  for (const auto& [json, parts] : cases) {
    const auto read = [&text = json] { profile_from_json(text, "its source"); };
    for (const std::string& part : parts) {
      EXPECT_THAT(read, ThrowsMessage<c10::ValueError>(
                            AllOf(HasSubstr("its source"), HasSubstr(part))))
          << json;
    }
  }
}

TEST(ProfileTest, NamesAFileThatItCannotUse) {
  const std::string path = "/no/such/folder/profile.json";
  EXPECT_THAT([&] { read_profile(path); },
              ThrowsMessage<c10::ValueError>(HasSubstr(path)));
  EXPECT_THAT([&] { write_profile(Profile(), path); },
              ThrowsMessage<c10::ValueError>(HasSubstr(path)));
}

}  // namespace
}  // namespace gpipe::balancing
