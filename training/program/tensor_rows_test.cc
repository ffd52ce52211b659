#include "training/program/tensor_rows.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/testing/files.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "models/weights/torch_file.h"
#include "training/program/make_task.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::new_folder;
using gpipe::testing::value_error_of;

// Rows for "masked", whose inputs are ids [rows, 9] and valid [rows, 9]. Its
// second output is [rows, 3].
StateDict rows(int64_t count) {
  StateDict dict;
  dict.insert("ids", at::arange(9 * count).remainder(23).view({count, 9}));
  dict.insert("valid", at::ones({count, 9}, at::kBool));
  dict.insert("target", at::arange(count).remainder(3));
  return dict;
}

Options options_for(const StateDict& dict, int64_t output = 1) {
  Options options;
  options.model = "models/exported/testdata/masked.pt2";
  options.output = output;
  options.batch = 2;
  options.data_dir = new_folder() + "rows.safetensors";
  write_safetensors(options.data_dir, dict);
  return options;
}

// Returns the error of rows in which one tensor is replaced.
std::string error_with(const std::string& name, const at::Tensor& tensor,
                       int64_t output = 1) {
  StateDict dict = rows(10);
  if (dict.contains(name)) dict.erase(name);
  if (tensor.defined()) dict.insert(name, tensor);
  return value_error_of([&] { make_task(options_for(dict, output)); });
}

TEST(TensorRowsTest, EachRowIsUsedOnceAndKeepsItsParts) {
  const auto task = make_task(options_for(rows(10)));
  EXPECT_EQ(task->data(),
            "9 rows for training and 1 for testing, of ids Long [10, 9], valid "
            "Bool [10, 9], target Long [10]");
  EXPECT_EQ(task->train_batches(), 4);
  EXPECT_EQ(task->test_batches(), 1);
  std::vector<int64_t> first_ids;
  const auto take = [&](const Sample& sample) {
    ASSERT_EQ(sample.further.size(), 1u);
    EXPECT_EQ(sample.further[0].sizes(), sample.input.sizes());
    for (int64_t k = 0; k < sample.target.size(0); ++k) {
      // Row i begins with 9 * i modulo 23, which differs for all rows.
      first_ids.push_back(sample.input[k][0].item<int64_t>());
      int64_t row = 0;
      while (9 * row % 23 != first_ids.back()) ++row;
      EXPECT_EQ(sample.target[k].item<int64_t>(), row % 3);
    }
  };
  for (int64_t k = 0; k < 4; ++k) take(task->train_batch(k, {0, 2}));
  take(task->test_batch(0));
  std::sort(first_ids.begin(), first_ids.end());
  EXPECT_EQ(first_ids.size(), 9u);
  EXPECT_EQ(std::unique(first_ids.begin(), first_ids.end()), first_ids.end());
}

TEST(TensorRowsTest, TheLossFollowsFromTheTarget) {
  const auto classes = make_task(options_for(rows(10)));
  const at::Tensor output = at::zeros({2, 3});
  const at::Tensor index = at::tensor({1, -100}, at::kLong);
  EXPECT_NEAR(classes->loss(output, index).sum.item<double>(), std::log(3),
              1e-6);
  EXPECT_EQ(classes->loss(output, index).weight.item<int64_t>(), 1);
  EXPECT_EQ(classes->metric_name(), "accuracy");
  StateDict dict = rows(10);
  dict.erase("target");
  dict.insert("target", at::ones({10, 3}));
  const auto values = make_task(options_for(dict));
  const at::Tensor target =
      at::tensor({3.0, 0.0, 0.0, 0.0, 0.0, 3.0}).view({2, 3});
  EXPECT_EQ(values->loss(output, target).sum.item<double>(), 18);
  EXPECT_EQ(values->loss(output, target).weight.item<double>(), 6);
  const Score score = values->score(output, target);
  EXPECT_EQ(values->metric_name(), "rms error");
  EXPECT_EQ(values->metric(score), std::sqrt(3.0));
}

TEST(TensorRowsTest, FilesOfPythonAreRead) {
  Options options = options_for(rows(10));
  const uint32_t checksum = make_task(options)->checksum();
  options.data_dir = new_folder() + "rows.pt";
  write_torch_file(options.data_dir, rows(10));
  EXPECT_EQ(make_task(options)->checksum(), checksum);
  EXPECT_NE(make_task(options_for(rows(9)))->checksum(), checksum);
}

TEST(TensorRowsTest, WhatDoesNotFitIsNamed) {
  const auto expect = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  expect(error_with("valid", {}),
         "has no tensor 'valid'; it has ids, target, but the model needs ids, "
         "valid and target");
  expect(error_with("target", {}), "has no tensor 'target'");
  expect(error_with("ids", at::ones({10, 9})),
         "the tensor 'ids' is Float [10, 9], but the model takes Long [s23, "
         "9]");
  expect(error_with("ids", at::ones({10, 8}, at::kLong)),
         "the tensor 'ids' is Long [10, 8]");
  expect(error_with("valid", at::ones({11, 9}, at::kBool)),
         "has 11 rows of 'valid', but 10 of 'target'");
  expect(error_with("target", at::ones({10, 1}, at::kLong)),
         "the tensor 'target' is Long [10, 1], but the model returns Float "
         "[s23, 3]; give indices");
  expect(error_with("target", at::ones({10, 4})),
         "the tensor 'target' is Float [10, 4]");
  expect(error_with("target", at::full({10}, 3)),
         "the targets are 3 to 3, but the model returns Float [s23, 3]");
  expect(error_with("target", at::full({10}, -100)), "all targets are -100");
  // Two outputs.
  expect(error_with("target", at::ones({10}, at::kLong), -1),
         "--output=N chooses one of several outputs");
  Options options = options_for(rows(10));
  options.model = "unet";
  expect(value_error_of([&] { make_task(options); }),
         "is a file with named tensors, which is for .pt2 files");
  options = options_for(rows(1));
  options.batch = 1;
  expect(value_error_of([&] { make_task(options); }),
         "--held_out=0.1 of 1 rows is 0");
}

}  // namespace
}  // namespace gpipe::train_program
