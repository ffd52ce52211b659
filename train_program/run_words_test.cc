#include "train_program/run_words.h"

#include <gtest/gtest.h>

#include <string>

#include "weights/testing/files.h"

namespace gpipe::trainer {
namespace {

using gpipe::testing::value_error_of;

TEST(RunWordsTest, AreReadAsTheyWereWritten) {
  const Words words{{"--model", ""}, {"--resume", "a=b\nc"}, {"--lr", "0.1"}};
  EXPECT_EQ(words_of(bytes_of(words)), words);
  EXPECT_EQ(words_of(bytes_of({})), Words());
}

TEST(RunWordsTest, WhatDiffersFromTheFirstProcessIsNamedWithBothValues) {
  const Words first{{"--lr", "0.1"},
                    {"--model", "unet"},
                    {"--seed", "1"},
                    {"--unet_depth", "3"}};
  const Words second{{"--lr", "0.1"},
                     {"--model", "unet"},
                     {"--seed", "2"},
                     {"--unet_depth", "3"}};
  const Words third{{"--lr", "0.1"}, {"--model", "resnet50"}, {"--seed", "3"}};
  EXPECT_EQ(value_error_of([&] {
              check_same_words({first, first});
            }),
            "no error");
  EXPECT_EQ(value_error_of([&] {
              check_same_words({first, second, third});
            }),
            "--model is 'resnet50' in process 2 and 'unet' in process 0; "
            "--seed is '2' in process 1 and '1' in process 0. Give all "
            "processes the same flags and data");
}

}  // namespace
}  // namespace gpipe::trainer
