// SPDX-License-Identifier: Apache-2.0
//
// Includes glog before LibTorch; libtorch_test.cc has the other order. Both
// define LOG and CHECK, so this compiles only if @libtorch defines
// C10_USE_GLOG.

// clang-format off
#include <glog/logging.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <c10/util/Logging.h>
// clang-format on

int64_t GlogFirst() {
  const at::Tensor ones = at::ones({2, 3});
  CHECK_EQ(ones.dim(), 2) << "a tensor of two dimensions";
  return ones.numel();
}
