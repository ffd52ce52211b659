#include "training/program/make_task.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

#include "training/testing/image_files.h"

namespace gpipe::train_program {
namespace {

using data::error_of;
using data::plain_image;
using data::write_bytes;
using data::write_png;

Options options_of(const std::string& model, const std::string& data) {
  Options options;
  options.model = model;
  options.data_dir = data;
  options.batch = 2;
  options.length = 4;
  options.size = 32;
  return options;
}

// Returns an empty folder for the running test.
std::string folder_for(const std::string& kind) {
  const auto* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder =
      ::testing::TempDir() + "make_task_" + test->name() + "_" + kind + "/";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

std::string text_file() {
  const std::string path = folder_for("text") + "text.txt";
  write_bytes(path, std::string(400, 'a') + "bc");
  return path;
}

std::string masks() {
  const std::string folder = folder_for("masks");
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
  const std::string folder = folder_for("images");
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
    const std::string copy = folder_for("copy") + "x";
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
    EXPECT_EQ(error_of([&] { make_task(options); }),
              "--limit=1 is less than a mini-batch, which has 2: use a larger "
              "limit, or smaller mini-batches")
        << model;
  }
}

TEST(MakeTaskTest, EachKindOfDataIsFound) {
  EXPECT_NE(make_task(options_of("transformer", text_file()))
                ->data()
                .find("3 different ones"),
            std::string::npos);
  EXPECT_NE(make_task(options_of("unet", masks()))
                ->data()
                .find("9 images with masks for training and 1 for testing"),
            std::string::npos);
  EXPECT_NE(make_task(options_of("resnet50", images()))
                ->data()
                .find("18 images for training and 2 for testing, of 2 classes"),
            std::string::npos);
}

TEST(MakeTaskTest, WhatDoesNotFitIsAnErrorThatSaysWhatWould) {
  const std::string folder = masks();
  const std::string error =
      error_of([&] { make_task(options_of("resnet50", folder)); });
  EXPECT_NE(error.find("--model=resnet50 needs a folder of labelled images"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("which is for --model=unet"), std::string::npos);
  EXPECT_NE(error_of([&] {
              make_task(options_of("transformer", folder));
            }).find("needs a text file"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              make_task(options_of("unet", text_file()));
            }).find("which is for --model=transformer"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              make_task(options_of("unet", folder + "nowhere"));
            }).find("no such file or folder"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              make_task(options_of("vgg", ""));
            }).find("must be one of resnet50, "),
            std::string::npos);
}

TEST(MakeTaskTest, NumbersThatCannotBeAreRefused) {
  Options options = options_of("resnet50", images());
  options.batch = 19;
  EXPECT_NE(error_of([&] {
              make_task(options);
            }).find("--batch=19 is more than the 18 items"),
            std::string::npos);
  options.batch = 0;
  EXPECT_NE(error_of([&] { make_task(options); }).find("--batch=0"),
            std::string::npos);
  options.batch = 2;
  options.crop = "round";
  EXPECT_NE(error_of([&] { make_task(options); }).find("--crop=round"),
            std::string::npos);
}

TEST(MakeTaskTest, SequencesThatDoNotFitAreRefused) {
  Options options = options_of("transformer", text_file());
  options.bucket = 2;
  EXPECT_NE(error_of([&] {
              make_task(options);
            }).find("has no line end among its 402 characters"),
            std::string::npos);
  write_bytes(options.data_dir, "a\nb\nc\n");
  options.held_out = 0.34;
  options.batch = 3;
  EXPECT_NE(error_of([&] {
              make_task(options);
            }).find("--batch=3 is more than the 2 sequences"),
            std::string::npos);
  options.held_out = 0.1;
  EXPECT_NE(error_of([&] {
              make_task(options);
            }).find("--held_out=0.1 of 3 sequences is 0"),
            std::string::npos);
  options = options_of("unet", "");
  options.bucket = 2;
  EXPECT_NE(error_of([&] {
              make_task(options);
            }).find("--bucket=2 with --model=unet"),
            std::string::npos);
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
  const std::string error = error_of([&] {
    for (int64_t k = 0; k < 2 * task->train_batches(); ++k) {
      task->train_batch(k, {0, 2});
    }
    for (int64_t k = 0; k < task->test_batches(); ++k) task->test_batch(k);
  });
  EXPECT_NE(error.find("a/3.png"), std::string::npos) << error;
  EXPECT_NE(error.find("--skip_broken"), std::string::npos) << error;
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
  EXPECT_NE(warnings[0].find("skipped, number 1: "), std::string::npos);
  EXPECT_NE(warnings[0].find("a/3.png"), std::string::npos);
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

}  // namespace
}  // namespace gpipe::train_program
