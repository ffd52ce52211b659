#include "training/program/options.h"

#include <gflags/gflags.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "models/testing/files.h"
#include "training/program/saved_run.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::value_error_of;

// ---- Flags of the command line

// Returns the flags that training/program/options.cc defines.
std::vector<gflags::CommandLineFlagInfo> all_flags() {
  std::vector<gflags::CommandLineFlagInfo> all, ours;
  gflags::GetAllFlags(&all);
  for (const auto& flag : all) {
    if (flag.filename.find("training/program/options.cc") !=
        std::string::npos) {
      ours.push_back(flag);
    }
  }
  return ours;
}

TEST(FlagsTest, EachIsInTheHelpOnce) {
  std::ostringstream help;
  print_help(help);
  std::istringstream lines(help.str());
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("  --", 0) != 0) continue;
    names.push_back(line.substr(4, line.find('=') - 4));
  }
  const std::set<std::string> different(names.begin(), names.end());
  EXPECT_EQ(different.size(), names.size());
  EXPECT_EQ(all_flags().size(), names.size());
  for (const auto& flag : all_flags()) {
    EXPECT_EQ(different.count(flag.name), 1) << flag.name;
  }
}

// Returns the number after `flag` in the help's first example that has it.
int64_t in_example(const std::string& flag) {
  std::ostringstream help;
  print_help(help);
  const std::string text = help.str();
  return std::stoll(text.substr(text.find(flag) + flag.size()));
}

TEST(FlagsTest, TheExampleOfCifar10EndsWithItsLearningRate) {
  constexpr int64_t kImages = 50000;
  const int64_t batches = kImages / in_example("--batch=");
  EXPECT_EQ(in_example("warmup:") + in_example(",cosine:"),
            in_example("--epochs=") * batches);
}

TEST(FlagsTest, LinesOfTheHelpFitATerminal) {
  std::ostringstream help;
  print_help(help);
  std::istringstream lines(help.str());
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80) << line;
  }
}

// Returns a value that is not the default.
std::string another(const gflags::CommandLineFlagInfo& flag) {
  if (flag.type == "bool") {
    return flag.default_value == "true" ? "false" : "true";
  }
  if (flag.type == "string") return "something";
  return flag.default_value == "77" ? "78" : "77";
}

std::string text_of(Options options) {
  std::ostringstream text;
  for (const OptionRow& row : option_rows()) {
    std::visit([&](const auto* value) { text << *value << "\n"; },
               row.value(options));
  }
  return text.str();
}

TEST(FlagsTest, EachChangesOneOption) {
  const std::string defaults = text_of(Options());
  EXPECT_EQ(text_of(options_of_flags()), defaults);
  std::set<std::string> texts{defaults};
  for (const auto& flag : all_flags()) {
    const gflags::FlagSaver saver;
    gflags::SetCommandLineOption(flag.name.c_str(), another(flag).c_str());
    const std::string text = text_of(options_of_flags());
    EXPECT_TRUE(texts.insert(text).second) << flag.name;
    // The flag must change exactly one line.
    std::istringstream a(defaults), b(text);
    int changed = 0;
    for (std::string x, y; std::getline(a, x) && std::getline(b, y);) {
      changed += x != y;
    }
    EXPECT_EQ(changed, 1) << flag.name;
  }
}

// ---- Flags in run checkpoints

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
