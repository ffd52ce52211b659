#include "training/program/run_flags.h"

#include <gtest/gtest.h>

#include <string>

#include "models/testing/files.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::value_error_of;

TEST(RunFlagsTest, AreReadAsTheyWereWritten) {
  const FlagValues flags{
      {"--model", ""}, {"--resume", "a=b\nc"}, {"--lr", "0.1"}};
  EXPECT_EQ(parse_flag_values(bytes_of(flags)), flags);
  EXPECT_EQ(parse_flag_values(bytes_of({})), FlagValues());
}

TEST(RunFlagsTest, WhatDiffersFromTheFirstProcessIsNamedWithBothValues) {
  const FlagValues first{{"--lr", "0.1"},
                         {"--model", "unet"},
                         {"--seed", "1"},
                         {"--unet_depth", "3"}};
  const FlagValues second{{"--lr", "0.1"},
                          {"--model", "unet"},
                          {"--seed", "2"},
                          {"--unet_depth", "3"}};
  const FlagValues third{
      {"--lr", "0.1"}, {"--model", "resnet50"}, {"--seed", "3"}};
  EXPECT_EQ(value_error_of([&] {
              check_same_flags({first, first});
            }),
            "no error");
  EXPECT_EQ(value_error_of([&] {
              check_same_flags({first, second, third});
            }),
            "--model is 'resnet50' in process 2 and 'unet' in process 0; "
            "--seed is '2' in process 1 and '1' in process 0. Give all "
            "processes the same flags and data");
}

}  // namespace
}  // namespace gpipe::train_program
