#include "training/program/model_source.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "models/testing/examples.h"
#include "models/testing/files.h"
#include "training/program/make_task.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::new_folder;
using gpipe::testing::value_error_of;
using models::DataKind;

std::string exported_file(const std::string& name) {
  return "models/exported/testdata/" + name + ".pt2";
}

// Returns the error of make_task() with a file, after `change`.
std::string task_error(const std::string& name,
                       const std::function<void(Options&)>& change) {
  Options options;
  options.model = exported_file(name);
  change(options);
  return value_error_of([&] { make_task(options); });
}

void set_nothing(Options&) {}

// Returns a copy of a file in which each `old_text` of the program is replaced.
std::string changed_file(const std::string& name, const std::string& old_text,
                         const std::string& new_text) {
  const std::string path = new_folder() + name + ".pt2";
  int64_t replaced = 0;
  gpipe::testing::edit_archive(
      exported_file(name), path,
      [&](const std::string& record, std::string& content) {
        if (record.rfind("models/", 0) != 0) return true;
        for (auto at = content.find(old_text); at != std::string::npos;
             at = content.find(old_text, at + new_text.size())) {
          content.replace(at, old_text.size(), new_text);
          ++replaced;
        }
        return true;
      });
  EXPECT_GT(replaced, 0) << old_text;
  return path;
}

TEST(ModelSourceTest, InputsAndOutputsDetermineTheKindOfData) {
  EXPECT_EQ(ModelSource(exported_file("letters")).kind(), DataKind::kText);
  EXPECT_EQ(ModelSource(exported_file("gpt")).kind(), DataKind::kText);
  EXPECT_EQ(ModelSource(exported_file("photos")).kind(), DataKind::kImages);
  EXPECT_EQ(ModelSource(exported_file("outlines")).kind(), DataKind::kMasks);
  EXPECT_EQ(ModelSource("unet").kind(), DataKind::kMasks);
  EXPECT_FALSE(ModelSource("unet").is_file());
}

TEST(ModelSourceTest, OtherInputsAndOutputsAreNamedWithTheFormsThatFit) {
  const std::string error =
      value_error_of([] { ModelSource source(exported_file("masked")); });
  EXPECT_EQ(
      error.find("--model=models/exported/testdata/masked.pt2 has the inputs\n"
                 "  0  ids  Long [s23, 9]\n"
                 "  1  valid  Bool [s23, 9]\n"
                 "and the outputs\n"
                 "  0  linear_12  Float [s23, 9, 23]\n"
                 "  1  tanh  Float [s23, 3]\n"
                 "which fit no kind of data; one of these forms is "
                 "needed:\n"
                 "  text: an input Long [rows, tokens], an output [rows, "
                 "tokens, vocabulary]\n"
                 "  labelled images: "),
      0u)
      << error;
  // Three dimensions of floats.
  EXPECT_NE(value_error_of([] {
              ModelSource source(exported_file("lstm"));
            }).find("0  x  Float [s77, 5, 6]"),
            std::string::npos);
  EXPECT_NE(value_error_of([] {
              ModelSource source("nowhere.pt2");
            }).find("nowhere.pt2"),
            std::string::npos);
}

TEST(ModelSourceTest, OneOfSeveralOutputsIsChosen) {
  Options options;
  options.output = 1;
  const std::string error = value_error_of([&] {
    ModelSource source(exported_file("masked"), exported_options(options));
  });
  EXPECT_NE(error.find("and the outputs\n  0  tanh  Float [s23, 3]\nwhich fit"),
            std::string::npos)
      << error;
  options.output = -2;
  EXPECT_EQ(value_error_of([&] { exported_options(options); }),
            "--output=-2: must be the number of an output, counted from 0, or "
            "-1");
}

TEST(ModelSourceTest, MaxCrossingDecidesHowManyLayersThereAre) {
  Options options;
  options.max_crossing = 0;
  ModelSource one(exported_file("letters"), exported_options(options));
  EXPECT_EQ(one.make({})->size(), 1u);
  options.max_crossing = 1;
  ModelSource more(exported_file("letters"), exported_options(options));
  EXPECT_GT(more.make({})->size(), 1u);
  options.max_crossing = -1;
  EXPECT_EQ(value_error_of([&] { exported_options(options); }),
            "--max_crossing=-1: must be at least 0");
}

TEST(ModelSourceTest, AFixedNumberOfRowsIsRefused) {
  const std::string path =
      changed_file("letters",
                   R"json({"as_expr": {"expr_str": )json"
                   R"json("Symbol('s23', positive=True, integer=True)", )json"
                   R"json("hint": {"as_int": 4}}})json",
                   R"json({"as_int": 4})json");
  EXPECT_EQ(value_error_of([&] { ModelSource source(path); }),
            "--model=" + path +
                " was exported for exactly 4 rows, but rows are split into "
                "micro-batches; export with dynamic_shapes={0: "
                "torch.export.Dim(\"batch\")} for the input ids");
}

TEST(ModelSourceTest, ImagesThatAreNotSquareAreRefused) {
  Options options;
  options.model = changed_file("photos", R"({"as_int": 16}, {"as_int": 16}])",
                               R"({"as_int": 16}, {"as_int": 12}])");
  EXPECT_EQ(
      value_error_of([&] { (void)ModelSource(options.model).fitted(options); })
          .find("--size=16, but --model=" + options.model +
                " has the input Float [s77, 3, 16, 12]"),
      0u);
}

TEST(ModelSourceTest, ImagesHaveTheSizeOfTheFile) {
  Options options;
  options.model = exported_file("photos");
  EXPECT_EQ(ModelSource(options.model).fitted(options).size, 16);
  options.size = 16;
  EXPECT_EQ(ModelSource(options.model).fitted(options).size, 16);
  options.size = 32;
  EXPECT_EQ(
      value_error_of([&] { (void)ModelSource(options.model).fitted(options); }),
      "--size=32, but --model=models/exported/testdata/photos.pt2 has the "
      "input "
      "Float [s77, 3, 16, 16], and images are square; use the --size of "
      "the file, or export with dynamic_shapes={2: "
      "torch.export.Dim(\"height\"), 3: torch.export.Dim(\"width\")} for "
      "the input");
  // A file for any size.
  options.model = exported_file("outlines");
  EXPECT_EQ(ModelSource(options.model).fitted(options).size, 32);
  options.size = 0;
  EXPECT_EQ(ModelSource(options.model).fitted(options).size, 0);
  EXPECT_NE(task_error("unet", set_nothing)
                .find("was exported for images of 2 channels, but this program "
                      "reads 3"),
            std::string::npos);
}

TEST(ModelSourceTest, ATextHasTheNumberOfTokensOfTheFile) {
  EXPECT_NE(
      task_error("gpt", [](Options& o) { o.length = 128; })
          .find(
              "--length=128, but --model=models/exported/testdata/gpt.pt2 was "
              "exported for 12 tokens; use --length=12"),
      std::string::npos);
  EXPECT_NE(task_error("gpt",
                       [](Options& o) {
                         o.length = 12;
                         o.bucket = 4;
                       })
                .find("--bucket=4 makes micro-batches of several lengths"),
            std::string::npos);
  EXPECT_EQ(task_error("gpt", [](Options& o) { o.length = 12; }), "no error");
  // With buckets of 12, each line of a text is padded to 12 tokens.
  EXPECT_EQ(task_error("gpt",
                       [](Options& o) {
                         o.length = 12;
                         o.bucket = 12;
                       }),
            "no error");
  EXPECT_EQ(task_error("letters", [](Options& o) { o.bucket = 4; }),
            "no error");
}

TEST(ModelSourceTest, TheWeightsOfAFileAreNotConverted) {
  EXPECT_NE(task_error("letters", [](Options& o) { o.precision = "bfloat16"; })
                .find("--precision=bfloat16 converts the weights"),
            std::string::npos);
  EXPECT_EQ(
      task_error("letters", [](Options& o) { o.precision = "amp-bfloat16"; }),
      "no error");
}

TEST(ModelSourceTest, TheFileNeedsAnOutputForEachClassOrCharacter) {
  std::string alphabet;
  for (char c = 'a'; c <= 'z'; ++c) alphabet += c;
  const std::string path = new_folder() + "text.txt";
  gpipe::testing::write_bytes(path, alphabet + alphabet + alphabet);
  const auto with = [&](Options& o) {
    o.data_dir = path;
    o.length = 2;
  };
  EXPECT_NE(task_error("letters", with)
                .find("has 16 outputs, but the data has 26 different "
                      "characters; export a model with at least 26"),
            std::string::npos);
  EXPECT_EQ(
      value_error_of([] {
        ModelSource(exported_file("photos")).check_outputs(9, "classes");
      }),
      "--model=models/exported/testdata/photos.pt2 has 8 outputs, but the data "
      "has 9 classes; export a model with at least 9");
  ModelSource(exported_file("photos")).check_outputs(8, "classes");
}

TEST(ModelSourceTest, TheDescriptionDoesNotDependOnTheFolder) {
  const std::string copy = new_folder() + "photos.pt2";
  std::filesystem::copy_file(exported_file("photos"), copy);
  const ModelSource photos(exported_file("photos"));
  EXPECT_EQ(ModelSource(copy).description(), photos.description());
  EXPECT_EQ(photos.description().find("photos.pt2, checksum "), 0u);
  std::filesystem::copy_file(exported_file("outlines"), copy,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_NE(ModelSource(copy).description(), photos.description());
  EXPECT_EQ(ModelSource("unet").description(), "unet");
}

}  // namespace
}  // namespace gpipe::train_program
