// SPDX-License-Identifier: Apache-2.0
//
// Checks the toolchain: all dependencies of gpipe compile, link and run in one
// binary.

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <gflags/gflags.h>
#include <glog/logging.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/version.h>

#include <numeric>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

DEFINE_int32(rows, 3, "rows of the input");

int64_t GlogFirst();  // in glog_first.cc

namespace {

TEST(LibTorchTest, HasTheLibrariesOfItsHeaders) {
  EXPECT_THAT(at::show_config(),
              testing::HasSubstr("TORCH_VERSION=" TORCH_VERSION ","));
}

TEST(LibTorchTest, IsInTheRangeThatIsAccepted) {
  EXPECT_EQ(TORCH_VERSION_MAJOR, 2);
  EXPECT_GE(TORCH_VERSION_MINOR, 11);
  EXPECT_LE(TORCH_VERSION_MINOR, 15);
}

TEST(LibTorchTest, Differentiates) {
  torch::nn::Linear linear(2, 5);
  const at::Tensor output = linear->forward(torch::ones({FLAGS_rows, 2}));
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{3, 5}));
  output.sum().backward();
  ASSERT_TRUE(linear->weight.grad().defined());
  EXPECT_TRUE(torch::equal(linear->weight.grad(), torch::full({5, 2}, 3.0f)));
}

TEST(LibTorchTest, ErrorsKeepTheirTypeAcrossTheLibrary) {
  EXPECT_THROW(torch::ones({2, 3}).matmul(torch::ones({2, 3})), c10::Error);
  EXPECT_THROW(TORCH_CHECK_VALUE(false, "no"), c10::ValueError);
}

TEST(LibTorchTest, RunsLoopsOnItsOwnThreads) {
  std::vector<int> marks(1000, 0);
  at::parallel_for(0, 1000, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) marks[i] = 1;
  });
  EXPECT_EQ(std::accumulate(marks.begin(), marks.end(), 0), 1000);
}

TEST(LibTorchTest, SharesABinaryWithGlogInBothOrders) {
  EXPECT_EQ(GlogFirst(), 6);
  CHECK(true) << "glog's CHECK, after LibTorch's headers";
  LOG_IF(INFO, false) << "glog's LOG, after LibTorch's headers";
}

TEST(LibTorchTest, SharesABinaryWithAbseil) {
  absl::flat_hash_map<std::string, int64_t> sizes;
  sizes[absl::StrCat("rows", 1)] = torch::ones({4, 2}).size(0);
  EXPECT_EQ(absl::StrFormat("%d", sizes["rows1"]), "4");
  absl::Mutex mutex;
  int64_t now = 0;
  {
    const absl::MutexLock lock(&mutex);
    now = absl::ToUnixNanos(absl::Now());
  }
  EXPECT_GT(now, 0);
}

}  // namespace
