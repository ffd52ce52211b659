#include "models/weights/formats.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/testing/files.h"

namespace gpipe::internal {

namespace {

TEST(DtypesTest, AreFoundByEachOfTheirNames) {
  EXPECT_EQ(find_dtype(&DtypeNames::python, "bfloat16")->dtype, at::kBFloat16);
  EXPECT_EQ(find_dtype(&DtypeNames::storage, "LongStorage")->dtype, at::kLong);
  EXPECT_EQ(find_dtype(&DtypeNames::safetensors, "F8_E4M3")->dtype,
            at::kFloat8_e4m3fn);
  EXPECT_STREQ(find_dtype(at::kBool)->safetensors, "BOOL");
  EXPECT_EQ(find_dtype(at::kQInt8), nullptr);
  EXPECT_EQ(find_dtype(at::ScalarType::Undefined), nullptr);
  EXPECT_EQ(find_dtype(&DtypeNames::python, "float"), nullptr);
  EXPECT_EQ(find_dtype(&DtypeNames::storage, ""), nullptr);
  EXPECT_EQ(find_dtype(&DtypeNames::safetensors, "F6_E2M3"), nullptr);
}

TEST(DtypesTest, CountBytesAsFarAsTheyCanBeCounted) {
  const auto bytes = [](const std::vector<int64_t>& sizes,
                        at::ScalarType dtype = at::kFloat) {
    return bytes_of(sizes, dtype);
  };
  EXPECT_EQ(bytes({}), 4);
  EXPECT_EQ(bytes({2, 3}), 24);
  EXPECT_EQ(bytes({2, 3}, at::kComplexDouble), 96);
  EXPECT_EQ(bytes({5, 0, 7}), 0);
  EXPECT_EQ(bytes({-1}), std::nullopt);
  EXPECT_EQ(bytes({int64_t{1} << 60}), int64_t{1} << 62);
  EXPECT_EQ(bytes({int64_t{1} << 61}), std::nullopt);
  EXPECT_EQ(bytes({int64_t{1} << 32, int64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(bytes({0, int64_t{1} << 32, int64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(bytes(std::vector<int64_t>(64, 1)), 4);
  EXPECT_EQ(bytes(std::vector<int64_t>(65, 1)), std::nullopt);
}

TEST(PrefixTest, LackOfMemoryIsNoFaultOfTheFile) {
  const auto error_after = [](const std::function<void()>& body) {
    return testing::error_of(
        [&] { with_prefix<c10::Error>("is damaged: ", body); });
  };
  EXPECT_EQ(error_after([] { TORCH_CHECK(false, "bytes"); }),
            "is damaged: bytes");
  EXPECT_EQ(error_after([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "a"); }),
            "a");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // The allocation fails at once; a sanitizer would end the process.
  const std::string text =
      error_after([] { at::empty({int64_t{1} << 62}, at::kByte); });
  EXPECT_NE(text.find("DefaultCPUAllocator: "), std::string::npos) << text;
  EXPECT_EQ(text.find("is damaged"), std::string::npos) << text;
#endif
}

TEST(ExtentTest, ReachesTheLastElementAsFarAsItCanBeCounted) {
  const int64_t large = int64_t{1} << 62;
  EXPECT_EQ(extent_of(0, {}, {}), 1);
  EXPECT_EQ(extent_of(5, {2, 3}, {3, 1}), 11);
  EXPECT_EQ(extent_of(5, {2, 3}, {0, 2}), 10);
  EXPECT_EQ(extent_of(5, {2, 0}, {3, 1}), 5);
  EXPECT_EQ(extent_of(0, {3}, {large}), std::nullopt);
  EXPECT_EQ(extent_of(large, {2, 2}, {large - 1, 1}), std::nullopt);
  EXPECT_EQ(extent_of(INT64_MAX - 1, {}, {}), INT64_MAX);
  EXPECT_EQ(extent_of(INT64_MAX, {}, {}), std::nullopt);
}

}  // namespace

}  // namespace gpipe::internal
