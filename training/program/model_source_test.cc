#include "training/program/model_source.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "models/exported/exported.h"
#include "models/testing/examples.h"
#include "models/testing/files.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "training/program/run.h"
#include "training/program/task.h"
#include "training/testing/run_states.h"
#include "training/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::example_file;
using gpipe::testing::new_folder;
using gpipe::testing::value_error_of;
using models::DataKind;
using ::testing::HasSubstr;

// ---- --model

std::string exported_file(const std::string& name) {
  return example_file(name + ".pt2");
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
  EXPECT_THAT(value_error_of([] { ModelSource source(exported_file("lstm")); }),
              HasSubstr("0  x  Float [s77, 5, 6]"));
  EXPECT_THAT(value_error_of([] { ModelSource source("nowhere.pt2"); }),
              HasSubstr("nowhere.pt2"));
}

TEST(ModelSourceTest, OneOfSeveralOutputsIsChosen) {
  Options options;
  options.output = 1;
  const std::string error = value_error_of([&] {
    ModelSource source(exported_file("masked"), exported_options(options));
  });
  EXPECT_THAT(
      error,
      HasSubstr("and the outputs\n  0  tanh  Float [s23, 3]\nwhich fit"));
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
  EXPECT_THAT(
      task_error("unet", set_nothing),
      HasSubstr("was exported for images of 2 channels, but this program "
                "reads 3"));
}

TEST(ModelSourceTest, ATextHasTheNumberOfTokensOfTheFile) {
  EXPECT_THAT(
      task_error("gpt", [](Options& o) { o.length = 128; }),
      HasSubstr(
          "--length=128, but --model=models/exported/testdata/gpt.pt2 was "
          "exported for 12 tokens; use --length=12"));
  EXPECT_THAT(task_error("gpt",
                         [](Options& o) {
                           o.length = 12;
                           o.bucket = 4;
                         }),
              HasSubstr("--bucket=4 makes micro-batches of several lengths"));
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
  EXPECT_THAT(
      task_error("letters", [](Options& o) { o.precision = "bfloat16"; }),
      HasSubstr("--precision=bfloat16 converts the weights"));
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
  EXPECT_THAT(task_error("letters", with),
              HasSubstr("has 16 outputs, but the data has 26 different "
                        "characters; export a model with at least 26"));
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

// ---- --eval_model

using Balance = std::vector<int64_t>;
using Names = std::vector<std::string>;

// A layer with parameters of one element, and buffers whose names begin with
// "buffer".
struct Layer : torch::nn::Module {
  explicit Layer(const Names& names, int64_t elements = 1) {
    for (const std::string& each : names) {
      const at::Tensor tensor = at::zeros({elements});
      if (each.rfind("buffer", 0) == 0) {
        register_buffer(each, tensor);
      } else {
        register_parameter(each, tensor);
      }
    }
  }
  at::Tensor forward(at::Tensor input) { return input; }
};

torch::nn::Sequential model_of(const std::vector<Names>& layers) {
  torch::nn::Sequential model;
  for (const Names& each : layers) model->push_back(Layer(each));
  return model;
}

// `trained`: a stage for each layer.
Balance balance_of(const std::vector<Names>& trained,
                   const std::vector<Names>& evaluated) {
  return eval_balance(model_of(trained), Balance(trained.size(), 1),
                      model_of(evaluated));
}

TEST(EvalBalanceTest, EachTensorIsInItsStage) {
  EXPECT_EQ(balance_of({{"a"}, {"b", "buffer"}}, {{"a"}, {}, {"b"}, {}}),
            Balance({2, 2}));
  EXPECT_EQ(balance_of({{"a", "b"}, {"c"}}, {{"a"}, {"b"}, {"c"}}),
            Balance({2, 1}));
  EXPECT_EQ(balance_of({{"a"}, {"buffer"}}, {{"a"}, {"buffer"}}),
            Balance({1, 1}));
  EXPECT_EQ(eval_balance(model_of({{"a"}, {"b"}, {"c"}}), {2, 1},
                         model_of({{"a"}, {"b"}, {"c"}})),
            Balance({2, 1}));
}

TEST(EvalBalanceTest, LayersWithoutTensorsFillStages) {
  EXPECT_EQ(balance_of({{}, {"a"}, {"b"}}, {{}, {}, {"a"}, {"b"}}),
            Balance({2, 1, 1}));
  EXPECT_EQ(balance_of({{"a"}, {}, {"b"}}, {{"a"}, {}, {}, {"b"}}),
            Balance({1, 2, 1}));
  EXPECT_EQ(balance_of({{"a"}, {}}, {{"a"}, {}, {}}), Balance({2, 1}));
}

TEST(EvalBalanceTest, AConstantOfSeveralLayersIsInNoStage) {
  EXPECT_EQ(balance_of({{"a", "buffer"}, {"b", "buffer"}},
                       {{"a", "buffer"}, {"b", "buffer"}}),
            Balance({1, 1}));
}

TEST(EvalBalanceTest, ErrorsNameLayerTensorsAndStages) {
  EXPECT_EQ(value_error_of([] {
              balance_of({{"a"}, {"b"}}, {{"a", "b"}, {}});
            }),
            "the layer '0' of --eval_model needs 'a' of stage 0 and 'b' of "
            "stage 1 of --model; choose another --balance");
  EXPECT_EQ(value_error_of([] {
              balance_of({{"a"}, {"b"}}, {{"b"}, {"a"}});
            }),
            "the layer '0' of --eval_model needs 'b' of stage 1 of --model, "
            "but it follows layers of stage 0; choose another --balance");
  EXPECT_EQ(value_error_of([] {
              balance_of({{"a"}, {}}, {{"a"}});
            }),
            "--eval_model has 1 layers, which are too few for the 2 stages of "
            "--model; choose another --balance");
  EXPECT_EQ(value_error_of([] {
              balance_of({{"a"}}, {{"a", "c"}});
            }),
            "--eval_model has the parameter 'c', which --model does not train; "
            "export both from the same model");
  EXPECT_EQ(value_error_of([] {
              torch::nn::Sequential other(Layer({"a"}, /*elements=*/2));
              eval_balance(model_of({{"a"}}), {1}, other);
            }),
            "'a' is Float [2] in --eval_model and Float [1] in --model; export "
            "both from the same model");
}

TEST(ShareTensorsTest, ConstantsFollowTheBuffersThatAreShared) {
  ExportedModel trained = load_exported(example_file("tables.pt2"));
  ExportedModel evaluated = load_exported(example_file("tables.pt2"));
  evaluated.layers->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::arange(10, at::kLong).view({2, 5});
  const auto output = [&](ExportedModel& model) {
    return model.layers->forward(ids);
  };
  for (int k = 0; k < 3; ++k) {
    share_tensors(*trained.layers, *evaluated.layers);
    EXPECT_TRUE(at::equal(output(evaluated), output(trained))) << k;
    const at::Tensor before = output(evaluated);
    for (const auto& each : trained.state_dict()) each.value().mul_(1.5);
    EXPECT_FALSE(at::equal(output(evaluated), before)) << k;
    EXPECT_TRUE(at::equal(output(evaluated), output(trained))) << k;
  }
  for (const auto& each : trained.state_dict()) {
    EXPECT_EQ(evaluated.state_dict()[each.key()].data_ptr(),
              each.value().data_ptr())
        << each.key();
  }
}

// A run of "scattered", which has noise in training, on rows of its own.
Options scattered() {
  Options options = small_options(example_file("scattered.pt2"));
  const std::string folder = new_folder();
  options.run_dir = folder + "run";
  options.data_dir = folder + "rows.safetensors";
  options.size = 0;
  options.steps = 4;
  options.lr = 0.01;
  options.eval_every = 2;
  torch::manual_seed(3);
  StateDict rows;
  rows.insert("x", at::randn({40, 4}));
  rows.insert("target", at::randn({40, 3}));
  write_safetensors(options.data_dir, rows);
  return options;
}

TEST(EvalModelTest, ARunThatCannotBeEvaluatedIsRefusedAtItsStart) {
  Options options = scattered();
  const std::string error = value_error_of([&] { run_here(options); });
  EXPECT_EQ(
      error.rfind("--model=models/exported/testdata/scattered.pt2 cannot be "
                  "evaluated, because the export has lost what eval() "
                  "changes:\n  node 'rand_like' "
                  "(torch.ops.aten.rand_like.default), File \"make.py\"",
                  0),
      0u)
      << error;
  EXPECT_THAT(error,
              HasSubstr("is random and has no training flag\nUse "
                        "--eval_model=SECOND.pt2 with a second export of the "
                        "same model, after model.eval(), or --eval_every=-1"));
  options.eval_every = -1;
  EXPECT_EQ(run_here(options).code, kDone);
}

// Returns the score of "steady" with the weights of the newest saved step.
Score score_of_steady(const Options& options) {
  const auto task = make_task(options);
  ExportedModel steady = load_exported(example_file("steady.pt2"));
  StateDict weights;
  for (const auto& item : state_in(options.run_dir).model) {
    // The layer's name comes before Python's.
    const std::string name = item.key().substr(item.key().find('.') + 1);
    if (!weights.contains(name)) weights.insert(name, item.value());
  }
  steady.load_state_dict(weights);
  const at::NoGradGuard no_grad;
  Score score;
  for (int64_t k = 0; k < task->test_batches(); ++k) {
    const Sample sample = task->test_batch(k);
    score += task->score(steady.layers->forward(sample.input), sample.target);
  }
  return score;
}

TEST(EvalModelTest, TheSecondFileEvaluatesWhatTheFirstOneTrains) {
  for (const char* devices : {"cpu", "cpu,cpu", "cpu,cpu,cpu"}) {
    Options options = scattered();
    options.devices = devices;
    options.partitions =
        static_cast<int64_t>(std::string(devices).size() + 1) / 4;
    Options never = options;
    never.run_dir += " never";
    never.eval_every = -1;
    EXPECT_EQ(run_here(never).code, kDone) << devices;
    options.eval_model = example_file("steady.pt2");
    EXPECT_EQ(run_here(options).code, kDone) << devices;
    const Score score = score_of_steady(options);
    EXPECT_EQ(score.items, 12) << devices;
    EXPECT_NEAR(std::stod(logged(options.run_dir, 4, "test_loss")),
                score.loss / score.items, 1e-6)
        << devices;
    EXPECT_NE(logged(options.run_dir, 2, "test_loss"),
              logged(options.run_dir, 4, "test_loss"))
        << devices;
    // Evaluations change nothing.
    SCOPED_TRACE(devices);
    gpipe::testing::expect_equal(state_in(options.run_dir).model,
                                 state_in(never.run_dir).model);
  }
}

TEST(EvalModelTest, AResumedRunEvaluatesItsWeights) {
  Options options = scattered();
  options.eval_model = example_file("steady.pt2");
  Options whole = options;
  whole.run_dir += " whole";
  EXPECT_EQ(run_here(whole).code, kDone);
  options.steps = 2;
  EXPECT_EQ(run_here(options).code, kDone);
  options.steps = 4;
  EXPECT_NE(run_here(options).line_with("resumes at step 2"), "");
  EXPECT_EQ(logged(options.run_dir, 4, "test_loss"),
            logged(whole.run_dir, 4, "test_loss"));
}

TEST(EvalModelTest, AFileThatDoesNotFitIsRefused) {
  Options options = scattered();
  const auto error_with = [&](const std::string& name) {
    options.eval_model = example_file(name + ".pt2");
    return value_error_of([&] { run_here(options); });
  };
  std::string error = error_with("scattered");
  EXPECT_THAT(error, HasSubstr("cannot be evaluated either"));
  EXPECT_THAT(error, HasSubstr("Export it after model.eval()"));
  error = error_with("mlp");
  EXPECT_THAT(
      error,
      HasSubstr("mlp.pt2 has the inputs\n  Float [*, 10]\nbut --model="
                "models/exported/testdata/scattered.pt2 has\n  Float [*, 4]\n"
                "Export both from the same model"));
  // "quiet" has some of the parameters.
  error = error_with("quiet");
  EXPECT_EQ(error,
            "'second.weight' is Float [3, 4] in --eval_model and Float [4, 4] "
            "in --model; export both from the same model");
  options.model = "transformer";
  options.data_dir = "";
  error = error_with("steady");
  EXPECT_THAT(error, HasSubstr("is for a --model that is a .pt2 file, but "
                               "--model=transformer"));
}

}  // namespace
}  // namespace gpipe::train_program
