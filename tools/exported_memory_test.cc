#include "tools/exported_memory.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "weights/testing/files.h"

namespace gpipe::tools {
namespace {

using gpipe::testing::value_error_of;

// Two Linears from 4 to 4 without bias, a ReLU and a Linear from 4 to 2,
// exported on the meta device.
constexpr char kPath[] = "exported/testdata/weightless.pt2";

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

// Among them numbers in the program, BatchNorm, skip tensors, several inputs
// and outputs, and tied weights.
TEST(ExportedMemoryTest, EachDeviceOfFilesWithValuesIsMeasured) {
  for (const std::string name :
       {"photos", "unet", "masked", "gpt", "regions"}) {
    ExportedMemoryOptions options;
    options.batch = 8;
    options.chunks = 4;
    std::ostringstream out;
    measure_exported("exported/testdata/" + name + ".pt2", options, out);
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
