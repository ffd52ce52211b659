#include "gpipe/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace gpipe::internal {
namespace {

using detail::portable_crc32c;

uint32_t of(const std::string& bytes) {
  return crc32c(bytes.data(), bytes.size());
}

// The examples of RFC 3720, B.4, and the common one of nine digits.
TEST(Crc32cTest, IsThatOfTheRfc) {
  std::string ascending, descending;
  for (int k = 0; k < 32; ++k) {
    ascending.push_back(static_cast<char>(k));
    descending.push_back(static_cast<char>(31 - k));
  }
  EXPECT_EQ(of(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(of(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(of(ascending), 0x46DD794Eu);
  EXPECT_EQ(of(descending), 0x113FDB5Cu);
  EXPECT_EQ(of("123456789"), 0xE3069283u);
  EXPECT_EQ(of(""), 0u);
  EXPECT_EQ(crc32c(nullptr, 0), 0u);
}

TEST(Crc32cTest, GoesOnFromThatOfTheBytesBefore) {
  EXPECT_EQ(crc32c("56789", 5, crc32c("1234", 4)), 0xE3069283u);
}

TEST(Crc32cTest, IsTheSameWithAndWithoutTheInstructionAndInParts) {
  std::string bytes;
  for (int k = 0; k < 100; ++k) bytes.push_back(static_cast<char>(k * k + 7));
  for (std::size_t from = 0; from < 9; ++from) {
    for (std::size_t size = 0; size + from <= bytes.size(); ++size) {
      const uint32_t whole = crc32c(bytes.data() + from, size);
      EXPECT_EQ(whole, portable_crc32c(bytes.data() + from, size));
      const std::size_t half = size / 2;
      const uint32_t first = crc32c(bytes.data() + from, half);
      EXPECT_EQ(whole, crc32c(bytes.data() + from + half, size - half, first));
      EXPECT_EQ(whole, portable_crc32c(bytes.data() + from + half, size - half,
                                       first));
    }
  }
}

TEST(Crc32cTest, SeesEveryChangeOfOneByte) {
  std::string bytes = "a few bytes that change";
  const uint32_t before = of(bytes);
  for (char& byte : bytes) {
    for (int change = 1; change < 256; ++change) {
      byte = static_cast<char>(byte ^ change);
      EXPECT_NE(of(bytes), before);
      byte = static_cast<char>(byte ^ change);
    }
  }
}

}  // namespace
}  // namespace gpipe::internal
