#include "tools/exported_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

#include "models/testing/files.h"
#include "models/weights/safetensors.h"
#include "models/weights/torch_file.h"

namespace gpipe::tools {
namespace {

using gpipe::testing::new_folder;
using gpipe::testing::value_error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string path_of(const std::string& file) {
  return "models/exported/testdata/" + file;
}

// Other machines than the one that made the files round differently.
constexpr double kTolerance = 1e-4;

struct Compared {
  bool equal;
  std::string text;
};

// Compares NAME.pt2 with a file, NAME.safetensors by default.
Compared compare(const std::string& name, std::string reference = "",
                 bool all_settings = false, int64_t max_crossing = 4) {
  if (reference.empty()) reference = path_of(name + ".safetensors");
  std::ostringstream out;
  const bool equal =
      compare_exported(path_of(name + ".pt2"), reference, max_crossing,
                       kTolerance, all_settings, out);
  return {equal, out.str()};
}

// One input and one output, several of both, BatchNorm, and skip tensors.
TEST(ExportedCompareTest, PipelinesHaveTheBitsOfOnePiece) {
  for (const std::string name : {"letters", "photos", "masked", "unet"}) {
    const auto [equal, text] = compare(name);
    EXPECT_TRUE(equal) << text;
    for (const char* count : {"2", "4"}) {
      const auto line = text.find(std::string(count) +
                                  " partitions, 1f1b, except_last, 4 "
                                  "micro-batches, compared with one piece: ");
      ASSERT_NE(line, std::string::npos) << text;
      EXPECT_THAT(text.substr(line, text.find('\n', line) - line),
                  Not(HasSubstr("differ")))
          << text;
    }
  }
}

TEST(ExportedCompareTest, AllSettingsHaveTheBitsOfOnePiece) {
  const std::string text = compare("masked", "", /*all_settings=*/true).text;
  std::istringstream lines(text);
  std::set<std::string> equal;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("partitions") == std::string::npos) continue;
    EXPECT_THAT(line, Not(HasSubstr("differ")));
    equal.insert(line.substr(0, line.find(", 4 micro-batches")));
  }
  EXPECT_EQ(equal.size(), 18u) << text;
  EXPECT_EQ(equal.count("3 partitions, zb-h1, always"), 1u);
}

// A BatchNorm, and a buffer that counts in train mode.
TEST(ExportedCompareTest, OutputsInEvalModeAreCompared) {
  for (const std::string name : {"photos", "seen"}) {
    StateDict tensors =
        read_safetensors(path_of(name + ".safetensors")).tensors;
    const std::string changed = new_folder() + "changed.safetensors";
    for (const bool same : {true, false}) {
      if (!same) tensors["eval.0"].add_(1);
      write_safetensors(changed, tensors);
      const auto [equal, text] = compare(name, changed);
      EXPECT_EQ(equal, same);
      std::istringstream lines(text);
      std::string line;
      std::getline(lines, line);  // one piece
      if (!same) {
        EXPECT_THAT(line, HasSubstr("1 outputs in eval() differ by up to "));
      }
      while (std::getline(lines, line)) {
        EXPECT_TRUE(line.ends_with(", 1 outputs in eval() bit-equal")) << line;
      }
    }
  }
}

TEST(ExportedCompareTest, AProgramWithoutEvalModeSaysWhy) {
  EXPECT_THAT(
      compare("noisy").text,
      AllOf(
          StartsWith(
              "in eval(): the exported program cannot be switched to eval(): "),
          Not(HasSubstr("outputs in eval()"))));
}

TEST(ExportedCompareTest, AnOtherGradientIsReported) {
  StateDict tensors = read_safetensors(path_of("letters.safetensors")).tensors;
  tensors["grad.head.bias"].add_(1);
  const std::string changed = new_folder() + "changed.safetensors";
  write_safetensors(changed, tensors);
  const auto [equal, text] = compare("letters", changed);
  EXPECT_FALSE(equal);
  EXPECT_THAT(text, HasSubstr("7 gradients differ by up to "));
  EXPECT_THAT(text, HasSubstr("of the largest element (head.bias)"));
}

TEST(ExportedCompareTest, PipelinesAreComparedWithPythonsMicrobatches) {
  const auto [equal, text] = compare("averages", path_of("averages.pt"));
  EXPECT_TRUE(equal) << text;
  EXPECT_THAT(text,
              HasSubstr("2 partitions, 1f1b, except_last, 4 micro-batches, "
                        "compared with Python's micro-batches: "));

  StateDict tensors = read_torch_file(path_of("averages.pt"));
  tensors["micro.buffer.norm.running_var"].add_(1);
  const std::string changed = new_folder() + "changed.pt";
  write_torch_file(changed, tensors);
  EXPECT_FALSE(compare("averages", changed).equal);
}

TEST(ExportedCompareTest, AReferenceWithoutGradientsIsRefused) {
  StateDict tensors;
  for (const auto& item :
       read_safetensors(path_of("letters.safetensors")).tensors) {
    if (item.key().starts_with("grad.")) continue;
    tensors.insert(item.key(), item.value());
  }
  const std::string changed = new_folder() + "changed.safetensors";
  write_safetensors(changed, tensors);
  EXPECT_THAT(value_error_of([&] { compare("letters", changed); }),
              HasSubstr("the reference has no gradient of "));
}

TEST(ExportedCompareTest, ModelsThatCannotBeCutRunInOnePiece) {
  const auto [equal, text] = compare("photos", "", false, /*max_crossing=*/0);
  EXPECT_TRUE(equal);
  EXPECT_THAT(text, Not(HasSubstr("partitions")));
}

TEST(ExportedCompareTest, AFileWithoutInputsIsNamed) {
  const std::string path = new_folder() + "none.safetensors";
  write_safetensors(path, StateDict());
  EXPECT_THAT(value_error_of([&] { compare("photos", path); }),
              HasSubstr("none.safetensors"));
}

// Two Linears from 4 to 4 without bias, a ReLU and a Linear from 4 to 2,
// exported on the meta device.
constexpr char kPath[] = "models/exported/testdata/weightless.pt2";

std::string table_of(const ExportedMemoryOptions& options) {
  std::ostringstream out;
  measure_exported(kPath, options, out);
  return out.str();
}

TEST(ExportedMemoryTest, CountsTheBytesOfEachDevice) {
  const std::string text =
      table_of({.batch = 4, .checkpoint = Checkpoint::kNever});
  EXPECT_THAT(text, HasSubstr("4 rows in 4 micro-batches, 1F1B on 2 devices"));
  // 2 x 16 + 8 weights and 2 biases of 4 bytes.
  EXPECT_THAT(text, HasSubstr("weights of all devices: 168 B"));
}

// Of micro-batches of one row. Device 0 holds at most the mini-batch (64 B),
// the gradient of its weight before it is in the sum (64 B), the gradient that
// comes in, and the output that the other device has yet to take (16 B each).
TEST(ExportedMemoryTest, ActivationsAreThePeakOfTheStep) {
  const std::string text =
      table_of({.batch = 4, .checkpoint = Checkpoint::kNever});
  EXPECT_THAT(
      text,
      HasSubstr("  device  layers  weights  gradients  optimizer  activations  "
                "  sum\n"
                "       0       1     64 B       64 B      128 B        160 B  "
                "416 B\n"
                "       1       3    104 B      104 B      208 B        "));
}

// Among them numbers in the program, BatchNorm, skip tensors, several inputs
// and outputs, and tied weights.
TEST(ExportedMemoryTest, EachDeviceOfFilesWithValuesIsMeasured) {
  for (const std::string name :
       {"photos", "unet", "masked", "gpt", "regions"}) {
    std::ostringstream out;
    measure_exported(path_of(name + ".pt2"), {.batch = 8, .chunks = 4}, out);
    EXPECT_THAT(out.str(), HasSubstr("largest sum of a device: ")) << name;
  }
}

// The larger micro-batch has 4 times the rows, and fewer of them are in flight.
TEST(ExportedMemoryTest, ActivationsDependOnTheMicroBatches) {
  ExportedMemoryOptions options{
      .batch = 4, .chunks = 1, .checkpoint = Checkpoint::kNever};
  const std::string whole = table_of(options);
  options.chunks = 4;
  EXPECT_NE(table_of(options), whole);
}

// Three Linears: 168 B of weights, and adapters of rank 1 with 2 x 4 + 2 x 4 +
// (4 + 2) numbers. Only these have gradients and a state.
TEST(ExportedMemoryTest, FrozenWeightsHaveNoGradientsAndNoState) {
  const ExportedMemoryOptions options{
      .partitions = 1,
      .batch = 4,
      .lora = LoraOptions().rank(1).targets({"0", "1", "3"}),
      .memory_gib = 1};
  std::ostringstream out;
  EXPECT_TRUE(measure_exported(kPath, options, out));
  EXPECT_THAT(out.str(), HasSubstr("  256 B       88 B      176 B"));
  EXPECT_THAT(out.str(), HasSubstr("all devices have enough with 1 GiB"));
}

TEST(ExportedMemoryTest, MissingMemoryIsNamed) {
  const ExportedMemoryOptions options{.batch = 4,
                                      .checkpoint = Checkpoint::kNever,
                                      .memory_gib = 400.0 / (1 << 30)};
  std::ostringstream out;
  EXPECT_FALSE(measure_exported(kPath, options, out));
  EXPECT_THAT(out.str(), HasSubstr("device 0 lacks 16 B of its 400 B"));
}

TEST(ExportedMemoryTest, WrongOptionsAreRefusedWithTheirNumbers) {
  ExportedMemoryOptions options;
  EXPECT_THAT(value_error_of([&] { table_of(options); }),
              HasSubstr("--batch=0"));
  options.batch = 2;
  options.chunks = 3;
  EXPECT_THAT(value_error_of([&] { table_of(options); }),
              HasSubstr("--chunks=3: must be 1 to --batch=2"));
  options.chunks = 0;
  options.partitions = 129;
  EXPECT_THAT(value_error_of([&] { table_of(options); }),
              HasSubstr("--partitions=129: must be 1 to 128"));
}

}  // namespace
}  // namespace gpipe::tools
