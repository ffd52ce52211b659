#include "training/program/task.h"

#include <ATen/Functions.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/testing/files.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "models/weights/torch_file.h"
#include "training/program/tasks.h"
#include "training/testing/image_files.h"
#include "training/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

using data::plain_image;
using data::write_png;
using gpipe::testing::new_folder;
using gpipe::testing::value_error_of;
using gpipe::testing::write_bytes;
using ::testing::HasSubstr;

// ---- The choice of a task

Options options_of(const std::string& model, const std::string& data) {
  Options options;
  options.model = model;
  options.data_dir = data;
  options.batch = 2;
  options.length = 4;
  options.size = 32;
  return options;
}

std::string text_file() {
  const std::string path = new_folder() + "text.txt";
  write_bytes(path, std::string(400, 'a') + "bc");
  return path;
}

std::string masks() {
  const std::string folder = new_folder();
  std::filesystem::create_directories(folder + "images");
  std::filesystem::create_directories(folder + "masks");
  for (int k = 0; k < 10; ++k) {
    const std::string name = std::to_string(k) + ".png";
    write_png(folder + "images/" + name, plain_image(8, 8, 10 * k, 0, 0));
    write_png(folder + "masks/" + name, plain_image(8, 8, 255, 255, 255));
  }
  return folder;
}

// Returns a folder with ten images in each of two classes. Image `broken` of
// class a cannot be read.
std::string images(int broken = -1) {
  const std::string folder = new_folder();
  for (const char* name : {"a", "b"}) {
    std::filesystem::create_directories(folder + name);
    for (int k = 0; k < 10; ++k) {
      const std::string path = folder + name + "/" + std::to_string(k) + ".png";
      write_png(path, plain_image(8, 8, 20 * k, 0, 0));
      if (k == broken && *name == 'a') write_bytes(path, "no image");
    }
  }
  return folder;
}

// Returns the error of a task with these options.
std::string error_of(const Options& options) {
  return value_error_of([&] { make_task(options); });
}

TEST(MakeTaskTest, TheChecksumIsOfWhichFilesThereAreAndNotOfWhere) {
  for (const char* model : {"transformer", "unet", "amoebanetd"}) {
    const auto checksum_of = [&](const std::string& path) {
      return make_task(options_of(model, path))->checksum();
    };
    EXPECT_EQ(checksum_of(""), 0) << model;
    const bool text = std::string(model) == "transformer";
    const std::string path = text                           ? text_file()
                             : std::string(model) == "unet" ? masks()
                                                            : images();
    const uint32_t there = checksum_of(path);
    const std::string copy = new_folder() + "x";
    std::filesystem::copy(path, copy, std::filesystem::copy_options::recursive);
    EXPECT_EQ(checksum_of(copy), there) << model;
    if (text) {
      write_bytes(copy, "cb" + std::string(400, 'a'));
    } else if (std::string(model) == "unet") {
      std::filesystem::rename(copy + "/images/3.png", copy + "/images/33.png");
      std::filesystem::rename(copy + "/masks/3.png", copy + "/masks/33.png");
    } else {
      std::filesystem::rename(copy + "/a/3.png", copy + "/a/33.png");
    }
    EXPECT_NE(checksum_of(copy), there) << model;
    EXPECT_EQ(make_task(options_of(model, copy))->data(),
              make_task(options_of(model, path))->data());
  }
}

TEST(MakeTaskTest, ALimitShortensEpochsOfEachKindOfData) {
  struct Case {
    const char* model;
    int64_t bucket;
    bool shuffles;  // an epoch has a shuffled order of its own
  };
  for (const auto& [model, bucket, shuffles] :
       {Case{"amoebanetd", 0, true}, Case{"unet", 0, true},
        Case{"transformer", 0, false}, Case{"transformer", 4, false}}) {
    Options options = options_of(model, "");
    options.bucket = bucket;
    const auto whole = make_task(options);
    options.limit = 5;  // 2 mini-batches of 2
    const auto limited = make_task(options);
    ASSERT_GT(whole->train_batches(), 2) << model;
    EXPECT_EQ(limited->train_batches(), 2) << model;
    EXPECT_EQ(limited->test_batches(), whole->test_batches()) << model;
    const int64_t second_epoch = shuffles ? whole->train_batches() : 2;
    EXPECT_TRUE(limited->train_batch(2, {0, 2}).input.equal(
        whole->train_batch(second_epoch, {0, 2}).input))
        << model;
    options.limit = 1;
    EXPECT_EQ(error_of(options),
              "--limit=1 is less than a mini-batch, which has 2: use a larger "
              "limit, or smaller mini-batches")
        << model;
  }
}

TEST(MakeTaskTest, EachKindOfDataIsFound) {
  EXPECT_THAT(make_task(options_of("transformer", text_file()))->data(),
              HasSubstr("3 different ones"));
  EXPECT_THAT(make_task(options_of("unet", masks()))->data(),
              HasSubstr("9 images with masks for training and 1 for testing"));
  EXPECT_THAT(
      make_task(options_of("resnet50", images()))->data(),
      HasSubstr("18 images for training and 2 for testing, of 2 classes"));
}

TEST(MakeTaskTest, WhatDoesNotFitIsAnErrorThatSaysWhatWould) {
  const std::string folder = masks();
  const std::string error = error_of(options_of("resnet50", folder));
  EXPECT_THAT(error,
              HasSubstr("--model=resnet50 needs a folder of labelled images"));
  EXPECT_THAT(error, HasSubstr("which is for --model=unet"));
  EXPECT_THAT(error_of(options_of("transformer", folder)),
              HasSubstr("needs a text file"));
  EXPECT_THAT(error_of(options_of("unet", text_file())),
              HasSubstr("which is for --model=transformer"));
  EXPECT_THAT(error_of(options_of("unet", folder + "nowhere")),
              HasSubstr("no such file or folder"));
  EXPECT_THAT(error_of(options_of("unet", "/" + std::string(300, 'x'))),
              HasSubstr("xxx: cannot be read: File name too long"));
  EXPECT_THAT(error_of(options_of("vgg", "")),
              HasSubstr("must be one of resnet50, "));
}

TEST(MakeTaskTest, NumbersThatCannotBeAreRefused) {
  Options options = options_of("resnet50", images());
  options.batch = 19;
  EXPECT_THAT(error_of(options),
              HasSubstr("--batch=19 is more than the 18 items"));
  options.batch = 0;
  EXPECT_THAT(error_of(options), HasSubstr("--batch=0"));
  options.batch = 2;
  options.crop = "round";
  EXPECT_THAT(error_of(options), HasSubstr("--crop=round"));
  for (const char* model : {"resnet50", "unet"}) {
    options = options_of(model, "");
    options.size = -1;
    EXPECT_THAT(error_of(options), HasSubstr("--size=-1: must be at least 0"));
  }
  options = options_of("transformer", "");
  options.length = 0;
  EXPECT_THAT(error_of(options), HasSubstr("--length=0: must be at least 1"));
}

TEST(MakeTaskTest, TheHeldOutPartOfGeneratedSumsIsThatOfTheOption) {
  Options options = options_of("transformer", "");
  options.held_out = 0.125;
  const int64_t eighth = make_task(options)->test_batches();
  options.held_out = 0.5;
  EXPECT_NEAR(static_cast<double>(make_task(options)->test_batches()),
              4.0 * static_cast<double>(eighth), 4);
  options.held_out = 1.5;
  EXPECT_THAT(error_of(options), HasSubstr("--held_out=1.5"));
}

TEST(MakeTaskTest, AnEpochHasAMiniBatchIfTheTextHasFewerWindows) {
  Options options = options_of("transformer", "");
  options.batch = int64_t{1} << 62;  // times --length it is 0 in 64 bits
  EXPECT_EQ(make_task(options)->train_batches(), 1);
}

TEST(MakeTaskTest, SequencesThatDoNotFitAreRefused) {
  Options options = options_of("transformer", text_file());
  options.bucket = 2;
  EXPECT_THAT(error_of(options),
              HasSubstr("has no line end among its 402 characters"));
  write_bytes(options.data_dir, "a\nb\nc\n");
  options.held_out = 0.34;
  options.batch = 3;
  EXPECT_THAT(error_of(options),
              HasSubstr("--batch=3 is more than the 2 sequences"));
  options.held_out = 0.1;
  EXPECT_THAT(error_of(options),
              HasSubstr("--held_out=0.1 of 3 sequences is 0"));
  options = options_of("unet", "");
  options.bucket = 2;
  EXPECT_THAT(error_of(options), HasSubstr("--bucket=2 with --model=unet"));
}

TEST(MakeTaskTest, RowsDoNotDependOnWhichOthersAreAskedFor) {
  for (const auto& options :
       {options_of("unet", masks()), options_of("resnet50", images()),
        options_of("transformer", text_file())}) {
    const auto task = make_task(options);
    for (const int64_t index : {0L, 3L, task->train_batches()}) {
      const Sample both = task->train_batch(index, {0, 2});
      const auto again = make_task(options);
      const Sample second = again->train_batch(index, {1, 2});
      EXPECT_TRUE(both.input.slice(0, 1).equal(second.input));
      EXPECT_TRUE(both.target.slice(0, 1).equal(second.target));
    }
  }
}

TEST(MakeTaskTest, ABrokenImageIsNamed) {
  const auto task = make_task(options_of("resnet50", images(3)));
  const std::string error = value_error_of([&] {
    for (int64_t k = 0; k < 2 * task->train_batches(); ++k) {
      task->train_batch(k, {0, 2});
    }
    for (int64_t k = 0; k < task->test_batches(); ++k) task->test_batch(k);
  });
  EXPECT_THAT(error, HasSubstr("a/3.png"));
  EXPECT_THAT(error, HasSubstr("--skip_broken"));
}

TEST(MakeTaskTest, OrLeftOutAndNamedOnce) {
  Options options = options_of("resnet50", images(3));
  options.skip_broken = true;
  const auto task = make_task(options);
  for (int64_t k = 0; k < 3 * task->train_batches(); ++k) {
    EXPECT_EQ(task->train_batch(k, {0, 2}).input.size(0), 2);
  }
  int64_t labels = 0;
  for (int64_t k = 0; k < task->test_batches(); ++k) {
    labels += task->test_batch(k).target.ge(0).sum().item<int64_t>();
  }
  const auto warnings = task->take_warnings();
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_THAT(warnings[0], HasSubstr("skipped, number 1: "));
  EXPECT_THAT(warnings[0], HasSubstr("a/3.png"));
  EXPECT_TRUE(task->take_warnings().empty());
  EXPECT_GE(labels, 1);
}

TEST(MakeTaskTest, EachImageIsSeenOncePerEpoch) {
  Options options = options_of("resnet50", images());
  options.flip = false;
  options.crop = "none";
  const auto task = make_task(options);
  ASSERT_EQ(task->train_batches(), 9);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::multiset<std::pair<float, int64_t>> seen;
    for (int64_t k = 0; k < 9; ++k) {
      const Sample sample = task->train_batch(9 * epoch + k, {0, 2});
      for (int64_t row = 0; row < 2; ++row) {
        seen.emplace(sample.input[row].max().item<float>(),
                     sample.target[row].item<int64_t>());
      }
    }
    EXPECT_EQ(
        std::set<decltype(seen)::value_type>(seen.begin(), seen.end()).size(),
        18);
  }
}

// ---- Losses

TEST(LossTest, LabelsThatAreMissingHaveNoWeight) {
  const at::Tensor logits = at::zeros({4, 5});
  const WeightedLoss loss =
      loss_of_labels(logits, at::tensor({1, -100, 4, -100}, at::kLong));
  EXPECT_EQ(loss.weight.item<int64_t>(), 2);
  EXPECT_NEAR(loss.sum.item<double>(), 2 * std::log(5.), 1e-5);
}

TEST(LossTest, OutputsInFloat64HaveLossesInFloat64) {
  const at::Tensor logits = at::zeros({1, 5}, at::kDouble);
  const at::Tensor label = at::zeros({1}, at::kLong);
  EXPECT_DOUBLE_EQ(loss_of_labels(logits, label).sum.item<double>(),
                   std::log(5.));
  EXPECT_DOUBLE_EQ(score_of_labels(logits, label).loss, std::log(5.));
  EXPECT_EQ(loss_of_labels(logits.to(at::kHalf), label).sum.scalar_type(),
            at::kFloat);
}

TEST(LossTest, PixelsOfANegativeMaskHaveNoWeight) {
  const at::Tensor logits = at::tensor({1., 1., -1., -1.}).view({1, 2, 2});
  const at::Tensor mask = at::tensor({1., 0., 0., 0.}).view({1, 2, 2});
  const at::Tensor none = at::full({1, 2, 2}, -1.);
  const WeightedLoss loss =
      loss_of_masks(at::stack({logits, logits}), at::stack({mask, none}));
  EXPECT_EQ(loss.weight.item<int64_t>(), 4);
  // ln(1 + 1/e) per correct pixel, and 1 more for the wrong one.
  EXPECT_NEAR(loss.sum.item<double>(), 4 * std::log1p(std::exp(-1.)) + 1, 1e-6);
}

TEST(LossTest, PaddingHasNoWeightAndIsNotScored) {
  const at::Tensor logits = at::zeros({2, 3, 5});
  const at::Tensor targets =
      at::tensor({1, 2, -100, 3, -100, -100}, at::kLong).view({2, 3});
  const WeightedLoss loss = loss_of_labels(logits, targets);
  EXPECT_EQ(loss.weight.item<int64_t>(), 3);
  EXPECT_NEAR(loss.sum.item<double>(), 3 * std::log(5.), 1e-5);
  const Score score = score_of_labels(logits, targets);
  EXPECT_EQ(score.items, 3);
  EXPECT_NEAR(score.loss, 3 * std::log(5.), 1e-5);
}

TEST(LossTest, AMicroBatchOfPaddingHasTheLossZero) {
  const WeightedLoss loss =
      loss_of_labels(at::zeros({1, 2, 5}), at::full({1, 2}, -100, at::kLong));
  EXPECT_EQ(loss.weight.item<int64_t>(), 0);
  EXPECT_EQ(loss.sum.item<double>(), 0);
}

TEST(LossTest, LabelsOfOtherSizesAreRefused) {
  const at::Tensor logits = at::zeros({2, 3, 5});
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{3, 2}, {6}, {2, 3, 1}}) {
    const at::Tensor labels = at::zeros(sizes, at::kLong);
    for (const auto& error :
         {value_error_of([&] { loss_of_labels(logits, labels); }),
          value_error_of([&] { score_of_labels(logits, labels); })}) {
      EXPECT_THAT(error, HasSubstr("but the model returns [2, 3, 5] for them"));
    }
  }
}

// ---- Scores

TEST(ScoreTest, LabelsThatAreFoundAreCountedAndMissingOnesAreNot) {
  const at::Tensor logits =
      at::tensor({0., 9., 0., 8., 0., 0., 0., 0., 7., 5., 0., 0.}).view({4, 3});
  const at::Tensor labels = at::tensor({1, 2, 2, -100}, at::kLong);
  const Score score = score_of_labels(logits, labels);
  EXPECT_EQ(score.items, 3);
  EXPECT_EQ(score.value, 2);
  const auto loss = [](double right, double other) {
    return std::log(1 + std::exp(other - right) + std::exp(0 - right));
  };
  EXPECT_NEAR(score.loss, loss(9, 0) + loss(0, 8) + loss(7, 0), 1e-5);
}

TEST(ScoreTest, DiceIsThatOfEachImage) {
  // Found are 2 pixels. The mask has 1, which is among them: 2 * 1 / 3.
  const at::Tensor first = at::tensor({1., 1., -1., -1.}).view({1, 2, 2});
  const at::Tensor first_mask = at::tensor({1., 0., 0., 0.}).view({1, 2, 2});
  // Both are empty: 1.
  const at::Tensor none = at::tensor({-1., -1., -1., -1.}).view({1, 2, 2});
  const at::Tensor empty = at::zeros({1, 2, 2});
  // A negative mask does not count.
  const at::Tensor missing = at::tensor({-1., -1., -1., -1.}).view({1, 2, 2});
  const Score score = score_of_masks(at::stack({first, none, first}),
                                     at::stack({first_mask, empty, missing}));
  EXPECT_EQ(score.items, 2);
  EXPECT_DOUBLE_EQ(score.value, 2. / 3 + 1);
  // ln(1 + 1/e) per correct pixel, and 1 more for the wrong one of 4 pixels.
  EXPECT_NEAR(score.loss, 2 * std::log1p(std::exp(-1.)) + 0.25, 1e-6);
}

TEST(ScoreTest, TokensAreCountedAndTheirLossesAddedUp) {
  const at::Tensor logits = at::zeros({2, 3, 5});
  const Score score = score_of_labels(logits, at::zeros({2, 3}, at::kLong));
  EXPECT_EQ(score.items, 6);
  EXPECT_NEAR(score.loss, 6 * std::log(5.), 1e-5);
}

// ---- Texts as sequences

constexpr int64_t kNone = -100;

Options bucket_options() {
  Options options = small_options("transformer");
  options.transformer_dropout = 0;
  options.bucket = 4;
  options.batch = 10;
  options.chunks = 3;
  options.run_dir = new_folder() + "run";
  return options;
}

// Returns the targets of a row without padding.
std::vector<int64_t> tokens_of(const at::Tensor& targets) {
  const at::Tensor valid = targets.masked_select(targets.ne(kNone));
  const auto* begin = valid.const_data_ptr<int64_t>();
  return {begin, begin + valid.numel()};
}

// The loss and the gradient of a step are those of each sequence on its own,
// without padding: the sum over all tokens, divided by their number.
TEST(SequencesTest, AStepIsThePlainSumOverTokensByTheirNumber) {
  Options options = bucket_options();
  options.optimizer = "sgd";
  options.momentum = 0;
  options.weight_decay = 0;
  options.lr = 1;
  options.accumulate = 2;
  options.steps = 1;
  const auto task = make_task(options);
  torch::manual_seed(options.seed);
  auto model = task->model();
  run_here(options, *task);

  at::Tensor sum = at::zeros({}, at::kDouble);
  int64_t count = 0;
  for (const Sample& part : task->train_parts({0, 20}, 6)) {
    for (int64_t row = 0; row < part.target.size(0); ++row) {
      const auto size =
          static_cast<int64_t>(tokens_of(part.target[row]).size());
      const at::Tensor logits =
          model->forward(part.input.slice(0, row, row + 1).slice(1, 0, size));
      sum = sum +
            torch::nn::functional::cross_entropy(
                logits[0].to(at::kDouble), part.target[row].slice(0, 0, size),
                torch::nn::functional::CrossEntropyFuncOptions().reduction(
                    torch::kSum));
      count += size;
    }
  }
  const at::Tensor loss = sum / static_cast<double>(count);
  loss.backward();
  EXPECT_NEAR(std::stod(logged(options.run_dir, 1, "loss")),
              loss.item<double>(), 1e-6);
  const StateDict after = state_in(options.run_dir).model;
  for (const auto& item : model->named_parameters()) {
    const at::Tensor expected = item.value().detach() - item.value().grad();
    EXPECT_LT((after[item.key()] - expected).abs().max().item<double>(), 2e-6)
        << item.key();
  }
}

TEST(SequencesTest, EachLineIsTrainedOnOncePerEpochAndTheLastAreTested) {
  Options options = bucket_options();
  options.data_dir = new_folder() + "lines.txt";
  options.length = 8;
  options.batch = 6;
  std::string text;
  std::vector<std::vector<int64_t>> lines;
  // Line k has k % 5 letters, and the line end. Tokens: '\n' is 0, 'a' is 1.
  for (int64_t k = 0; k < 20; ++k) {
    lines.emplace_back();
    for (int64_t n = 0; n < k % 5; ++n) {
      text.push_back(static_cast<char>('a' + (k + n) % 7));
      lines.back().push_back(1 + (k + n) % 7);
    }
    text.push_back('\n');
    lines.back().push_back(0);
  }
  write_bytes(options.data_dir, text);
  options.held_out = 0.1;
  const auto task = make_task(options);
  EXPECT_EQ(task->data(),
            "18 sequences of 51 characters for training and 2 of 9 for "
            "testing, 8 different ones, cut at 8");
  EXPECT_EQ(task->rows_name(), "sequences");
  EXPECT_EQ(task->train_batches(), 3);

  std::map<std::vector<int64_t>, int> expected;
  for (int64_t k = 0; k < 18; ++k) ++expected[lines[k]];
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::map<std::vector<int64_t>, int> seen;
    for (int64_t step = 3 * epoch; step < 3 * epoch + 3; ++step) {
      for (const auto& part : task->train_parts({6 * step, 6 * step + 6}, 2)) {
        for (const at::Tensor& row : part.target.unbind()) {
          ++seen[tokens_of(row)];
        }
      }
    }
    EXPECT_EQ(seen, expected);
  }
  ASSERT_EQ(task->test_batches(), 1);
  const Sample test = task->test_batch(0);
  EXPECT_EQ(tokens_of(test.target[0]), lines[18]);
  EXPECT_EQ(tokens_of(test.target[1]), lines[19]);
}

TEST(SequencesTest, EvaluationScoresTheTokensOfAllHeldOutSequences) {
  Options options = bucket_options();
  options.batch = 300;  // does not divide the test set
  options.steps = 2;
  options.eval_every = 2;
  const auto task = make_task(options);
  run_here(options, *task);
  const Score score = plain_score(options.run_dir, *task, task->model());
  int64_t tokens = 0;
  for (int64_t k = 0; k < task->test_batches(); ++k) {
    tokens += task->test_batch(k).target.ne(kNone).sum().item<int64_t>();
  }
  EXPECT_EQ(score.items, tokens);
  EXPECT_THAT(task->data(),
              HasSubstr(" of " + std::to_string(tokens) + " for testing"));
  EXPECT_NEAR(std::stod(logged(options.run_dir, 2, "test_loss")),
              score.loss / score.items, 1e-6);
}

// ---- Rows of named tensors

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
  return error_of(options_for(dict, output));
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

TEST(TensorRowsTest, RowsWithoutATargetAreNotUsed) {
  // Output 0 is [rows, 9, 23]. Even rows have targets of -100 only, and odd
  // rows one other target.
  StateDict dict = rows(20);
  dict.erase("target");
  at::Tensor target = at::full({20, 9}, -100, at::kLong);
  for (int64_t row = 1; row < 20; row += 2) target[row][row % 9] = row;
  dict.insert("target", target);
  Options options = options_for(dict, /*output=*/0);
  options.batch = 1;
  const auto task = make_task(options);
  EXPECT_EQ(task->data(),
            "9 rows for training and 1 for testing, 10 not used (all their "
            "targets are -100), of ids Long [20, 9], valid Bool [20, 9], "
            "target Long [20, 9]");
  EXPECT_EQ(task->train_batches(), 9);
  EXPECT_EQ(task->test_batches(), 1);
  std::vector<int64_t> found;
  const auto take = [&](const Sample& sample) {
    ASSERT_EQ(sample.target.size(0), 1);
    found.push_back(sample.target.max().item<int64_t>());
    EXPECT_EQ(sample.input[0][0].item<int64_t>(), 9 * found.back() % 23);
  };
  for (int64_t k = 0; k < 9; ++k) take(task->train_batch(k, {0, 1}));
  take(task->test_batch(0));
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, (std::vector<int64_t>{1, 3, 5, 7, 9, 11, 13, 15, 17, 19}));
  target.slice(0, 2).fill_(-100);
  dict.erase("target");
  dict.insert("target", target);
  EXPECT_THAT(error_of(options_for(dict, /*output=*/0)),
              HasSubstr("--held_out=0.1 of 1 rows with a target is 0"));
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
    EXPECT_THAT(error, HasSubstr(part));
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
  expect(error_of(options),
         "is a file with named tensors, which is for .pt2 files");
  options = options_for(rows(1));
  options.batch = 1;
  expect(error_of(options), "--held_out=0.1 of 1 rows is 0");
}

}  // namespace
}  // namespace gpipe::train_program
