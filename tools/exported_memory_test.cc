#include "tools/exported_memory.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "models/testing/files.h"

namespace gpipe::tools {
namespace {

using gpipe::testing::value_error_of;

// Two Linears from 4 to 4 without bias, a ReLU and a Linear from 4 to 2,
// exported on the meta device.
constexpr char kPath[] = "models/exported/testdata/weightless.pt2";

std::string table_of(const ExportedMemoryOptions& options) {
  std::ostringstream out;
  measure_exported(kPath, options, out);
  return out.str();
}

TEST(ExportedMemoryTest, CountsTheBytesOfEachDevice) {
  ExportedMemoryOptions options;
  options.batch = 4;
  options.checkpoint = Checkpoint::kNever;
  const std::string text = table_of(options);
  EXPECT_NE(text.find("4 rows in 4 micro-batches, 1F1B on 2 devices"),
            std::string::npos)
      << text;
  // 2 x 16 + 8 weights and 2 biases of 4 bytes.
  EXPECT_NE(text.find("weights of all devices: 168 B"), std::string::npos)
      << text;
}

// Of micro-batches of one row. Device 0 holds at most the mini-batch (64 B),
// the gradient of its weight before it is in the sum (64 B), the gradient that
// comes in, and the output that the other device has yet to take (16 B each).
TEST(ExportedMemoryTest, ActivationsAreThePeakOfTheStep) {
  ExportedMemoryOptions options;
  options.batch = 4;
  options.checkpoint = Checkpoint::kNever;
  const std::string text = table_of(options);
  EXPECT_NE(
      text.find("  device  layers  weights  gradients  optimizer  activations  "
                "  sum\n"
                "       0       1     64 B       64 B      128 B        160 B  "
                "416 B\n"
                "       1       3    104 B      104 B      208 B        "),
      std::string::npos)
      << text;
}

// Among them numbers in the program, BatchNorm, skip tensors, several inputs
// and outputs, and tied weights.
TEST(ExportedMemoryTest, EachDeviceOfFilesWithValuesIsMeasured) {
  for (const std::string name :
       {"photos", "unet", "masked", "gpt", "regions"}) {
    ExportedMemoryOptions options;
    options.batch = 8;
    options.chunks = 4;
    std::ostringstream out;
    measure_exported("models/exported/testdata/" + name + ".pt2", options, out);
    EXPECT_NE(out.str().find("largest sum of a device: "), std::string::npos)
        << name;
  }
}

// The larger micro-batch has 4 times the rows, and fewer of them are in flight.
TEST(ExportedMemoryTest, ActivationsDependOnTheMicroBatches) {
  ExportedMemoryOptions options;
  options.batch = 4;
  options.checkpoint = Checkpoint::kNever;
  options.chunks = 1;
  const std::string whole = table_of(options);
  options.chunks = 4;
  EXPECT_NE(table_of(options), whole);
}

// Three Linears: 168 B of weights, and adapters of rank 1 with 2 x 4 + 2 x 4 +
// (4 + 2) numbers. Only these have gradients and a state.
TEST(ExportedMemoryTest, FrozenWeightsHaveNoGradientsAndNoState) {
  ExportedMemoryOptions options;
  options.partitions = 1;
  options.batch = 4;
  options.lora = LoraOptions().rank(1).targets({"0", "1", "3"});
  options.memory_gib = 1;
  std::ostringstream out;
  EXPECT_TRUE(measure_exported(kPath, options, out));
  EXPECT_NE(out.str().find("  256 B       88 B      176 B"), std::string::npos)
      << out.str();
  EXPECT_NE(out.str().find("all devices have enough with 1 GiB"),
            std::string::npos)
      << out.str();
}

TEST(ExportedMemoryTest, MissingMemoryIsNamed) {
  ExportedMemoryOptions options;
  options.batch = 4;
  options.checkpoint = Checkpoint::kNever;
  options.memory_gib = 400.0 / (1 << 30);
  std::ostringstream out;
  EXPECT_FALSE(measure_exported(kPath, options, out));
  EXPECT_NE(out.str().find("device 0 lacks 16 B of its 400 B"),
            std::string::npos)
      << out.str();
}

TEST(ExportedMemoryTest, WrongOptionsAreRefusedWithTheirNumbers) {
  ExportedMemoryOptions options;
  EXPECT_NE(value_error_of([&] { table_of(options); }).find("--batch=0"),
            std::string::npos);
  options.batch = 2;
  options.chunks = 3;
  EXPECT_NE(value_error_of([&] {
              table_of(options);
            }).find("--chunks=3: must be 1 to --batch=2"),
            std::string::npos);
  options.chunks = 0;
  options.partitions = 129;
  EXPECT_NE(value_error_of([&] {
              table_of(options);
            }).find("--partitions=129: must be 1 to 128"),
            std::string::npos);
}

}  // namespace
}  // namespace gpipe::tools
