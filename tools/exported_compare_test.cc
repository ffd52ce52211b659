#include "tools/exported_compare.h"

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

std::string path_of(const std::string& file) {
  return "models/exported/testdata/" + file;
}

// Other machines than the one that made the files round differently.
constexpr double kTolerance = 1e-4;

// One input and one output, several of both, BatchNorm, and skip tensors.
TEST(ExportedCompareTest, PipelinesHaveTheBitsOfOnePiece) {
  for (const std::string name : {"letters", "photos", "masked", "unet"}) {
    std::ostringstream out;
    EXPECT_TRUE(compare_exported(path_of(name + ".pt2"),
                                 path_of(name + ".safetensors"), 4, kTolerance,
                                 /*all_settings=*/false, out))
        << out.str();
    for (const char* count : {"2", "4"}) {
      const std::string text = out.str();
      const auto line = text.find(std::string(count) +
                                  " partitions, 1f1b, except_last, 4 "
                                  "micro-batches, compared with one piece: ");
      ASSERT_NE(line, std::string::npos) << text;
      EXPECT_EQ(text.substr(line, text.find('\n', line) - line).find("differ"),
                std::string::npos)
          << text;
    }
  }
}

TEST(ExportedCompareTest, AllSettingsHaveTheBitsOfOnePiece) {
  std::ostringstream out;
  compare_exported(path_of("masked.pt2"), path_of("masked.safetensors"), 4,
                   kTolerance, /*all_settings=*/true, out);
  std::istringstream lines(out.str());
  std::set<std::string> equal;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("partitions") == std::string::npos) continue;
    EXPECT_EQ(line.find("differ"), std::string::npos) << line;
    equal.insert(line.substr(0, line.find(", 4 micro-batches")));
  }
  EXPECT_EQ(equal.size(), 18u) << out.str();
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
      std::ostringstream out;
      EXPECT_EQ(compare_exported(path_of(name + ".pt2"), changed, 4, kTolerance,
                                 /*all_settings=*/false, out),
                same);
      std::istringstream lines(out.str());
      std::string line;
      std::getline(lines, line);  // one piece
      if (!same) {
        EXPECT_NE(line.find("1 outputs in eval() differ by up to "),
                  std::string::npos)
            << line;
      }
      while (std::getline(lines, line)) {
        EXPECT_TRUE(line.ends_with(", 1 outputs in eval() bit-equal")) << line;
      }
    }
  }
}

TEST(ExportedCompareTest, AProgramWithoutEvalModeSaysWhy) {
  std::ostringstream out;
  (void)compare_exported(path_of("noisy.pt2"), path_of("noisy.safetensors"), 4,
                         kTolerance, /*all_settings=*/false, out);
  EXPECT_TRUE(out.str().starts_with(
      "in eval(): the exported program cannot be switched to eval(): "))
      << out.str();
  EXPECT_EQ(out.str().find("outputs in eval()"), std::string::npos)
      << out.str();
}

TEST(ExportedCompareTest, AnOtherGradientIsReported) {
  StateDict tensors = read_safetensors(path_of("letters.safetensors")).tensors;
  tensors["grad.head.bias"].add_(1);
  const std::string changed = new_folder() + "changed.safetensors";
  write_safetensors(changed, tensors);
  std::ostringstream out;
  EXPECT_FALSE(compare_exported(path_of("letters.pt2"), changed, 4, kTolerance,
                                false, out));
  EXPECT_NE(out.str().find("7 gradients differ by up to "), std::string::npos)
      << out.str();
  EXPECT_NE(out.str().find("of the largest element (head.bias)"),
            std::string::npos)
      << out.str();
}

TEST(ExportedCompareTest, PipelinesAreComparedWithPythonsMicrobatches) {
  std::ostringstream out;
  EXPECT_TRUE(compare_exported(path_of("averages.pt2"), path_of("averages.pt"),
                               4, kTolerance, false, out))
      << out.str();
  EXPECT_NE(out.str().find("2 partitions, 1f1b, except_last, 4 micro-batches, "
                           "compared with Python's micro-batches: "),
            std::string::npos)
      << out.str();

  StateDict tensors = read_torch_file(path_of("averages.pt"));
  tensors["micro.buffer.norm.running_var"].add_(1);
  const std::string changed = new_folder() + "changed.pt";
  write_torch_file(changed, tensors);
  EXPECT_FALSE(compare_exported(path_of("averages.pt2"), changed, 4, kTolerance,
                                false, out));
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
  std::ostringstream out;
  EXPECT_NE(value_error_of([&] {
              compare_exported(path_of("letters.pt2"), changed, 4, kTolerance,
                               false, out);
            }).find("the reference has no gradient of "),
            std::string::npos);
}

TEST(ExportedCompareTest, ModelsThatCannotBeCutRunInOnePiece) {
  std::ostringstream out;
  EXPECT_TRUE(compare_exported(path_of("photos.pt2"),
                               path_of("photos.safetensors"), 0, kTolerance,
                               false, out));
  EXPECT_EQ(out.str().find("partitions"), std::string::npos) << out.str();
}

TEST(ExportedCompareTest, AFileWithoutInputsIsNamed) {
  const std::string path = new_folder() + "none.safetensors";
  write_safetensors(path, StateDict());
  std::ostringstream out;
  EXPECT_NE(value_error_of([&] {
              compare_exported(path_of("photos.pt2"), path, 4, 0, false, out);
            }).find("none.safetensors"),
            std::string::npos);
}

}  // namespace
}  // namespace gpipe::tools
