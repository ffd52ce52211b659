#include "training/data/checksum.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <string>

#include "gpipe/base/crc32c.h"

namespace gpipe::data {
namespace {

TEST(ChecksumTest, GoesOnFromWhatCameBefore) {
  const std::string bytes("ab\0c\0", 5);
  EXPECT_EQ(checksum_of(std::string("c"), checksum_of(std::string("ab"))),
            internal::crc32c(bytes.data(), bytes.size()));
  EXPECT_NE(checksum_of(std::string("bc"), checksum_of(std::string("a"))),
            internal::crc32c(bytes.data(), bytes.size()));
}

TEST(ChecksumTest, OfATensorIsThatOfItsElementsInOrder) {
  const at::Tensor columns = at::arange(6).view({2, 3}).t();
  EXPECT_EQ(checksum_of(columns),
            checksum_of(std::vector<int64_t>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(checksum_of(columns, 7), checksum_of(columns.contiguous(), 7));
}

}  // namespace
}  // namespace gpipe::data
