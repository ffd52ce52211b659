#include "models/weights/hugging_face.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <utility>

#include "gpipe/meta.h"
#include "models/exported/exported.h"
#include "models/testing/examples.h"
#include "models/testing/files.h"
#include "models/weights/names.h"
#include "models/weights/safetensors.h"

namespace gpipe {
namespace {

using testing::bit_equal;
using testing::copy_of;
using testing::expect_equal;
using ::testing::HasSubstr;
using testing::names_in;
using testing::new_folder;
using testing::read_bytes;
using testing::value_error_of;
using testing::write_bytes;

constexpr char kIndex[] = "model.safetensors.index.json";

std::string llama(const std::string& ending = "") {
  return "models/weights/testdata/llama" + ending;
}

ExportedModel llama_model() { return load_exported(llama(".pt2")); }

// Returns a new folder with these tensors in one file.
std::string folder_of(const StateDict& tensors) {
  const std::string folder = new_folder();
  write_safetensors(folder + "model.safetensors", tensors);
  return folder;
}

// Returns a copy of `dict` with each name and tensor changed. A tensor whose
// name becomes "" is left out.
StateDict changed(
    const StateDict& dict,
    const std::function<std::string(const std::string&)>& rename,
    const std::function<at::Tensor(const at::Tensor&)>& change = {}) {
  StateDict result;
  for (const auto& item : dict) {
    const std::string name = rename(item.key());
    if (name.empty()) continue;
    result.insert(name, change ? change(item.value()) : item.value());
  }
  return result;
}

std::string same_name(const std::string& name) { return name; }

// Loads the folder, expects an error with each of `parts`, and expects that
// nothing has changed.
void expect_error(const std::string& folder,
                  const std::vector<std::string>& parts,
                  const HuggingFaceOptions& options = {}) {
  ExportedModel model = llama_model();
  const StateDict before = copy_of(model.state_dict());
  const std::string text =
      value_error_of([&] { load_hugging_face(folder, model, options); });
  EXPECT_NE(text, "no error");
  EXPECT_EQ(text.rfind(folder, 0), 0u) << text;
  for (const std::string& each : parts) {
    EXPECT_NE(text.find(each), std::string::npos) << each << "\nin: " << text;
  }
  expect_equal(model.state_dict(), before);
}

// ---- Loading

// The folder has the weights of the output; the program has others.
TEST(LoadHuggingFaceTest, GivesThePythonModelOfTheFolder) {
  at::set_num_threads(1);
  const StateDict expected = read_safetensors(llama(".safetensors")).tensors;
  ExportedModel model = llama_model();
  const auto output = [&] {
    return model.layers->forward<at::Tensor>(expected["input"]);
  };
  EXPECT_FALSE(at::allclose(output(), expected["output"], 1e-2, 1e-2));
  load_hugging_face(llama(), model);
  EXPECT_TRUE(at::allclose(output(), expected["output"], 1e-5, 1e-6));
}

TEST(SaveHuggingFaceTest, AnEmptyTextIsNoFolder) {
  StateDict dict;
  dict.insert("a", at::zeros({2}));
  for (const auto& error :
       {value_error_of([&] { save_hugging_face("", dict); }),
        value_error_of([] { read_hugging_face(""); })}) {
    EXPECT_THAT(error, HasSubstr("the folder of the weights is an empty text"));
  }
}

TEST(LoadHuggingFaceTest, TiedWeightsAreInTheFolderOnce) {
  const StateDict stored = read_hugging_face(llama());
  EXPECT_FALSE(stored.contains("lm_head.weight"));
  ExportedModel model = llama_model();
  load_hugging_face(llama(), model);
  const StateDict loaded = model.state_dict();
  EXPECT_EQ(loaded.size(), stored.size() + 1);
  for (const auto& item : stored) {
    EXPECT_TRUE(bit_equal(loaded["model." + item.key()], item.value()))
        << item.key();
  }
  EXPECT_TRUE(loaded["model.lm_head.weight"].data_ptr() ==
              loaded["model.model.embed_tokens.weight"].data_ptr());
}

TEST(LoadHuggingFaceTest, TiedWeightsAreThereTwiceIfTheyAreEqual) {
  StateDict both = read_hugging_face(llama());
  both.insert("lm_head.weight", both["model.embed_tokens.weight"].clone());
  ExportedModel model = llama_model();
  load_hugging_face(folder_of(both), model);
  EXPECT_TRUE(bit_equal(model.state_dict()["model.lm_head.weight"],
                        both["lm_head.weight"]));
  both["lm_head.weight"][47][15] += 1;
  expect_error(
      folder_of(both),
      {"model.safetensors: 'model.model.embed_tokens.weight' and "
       "'model.lm_head.weight' are one weight in the exported program, "
       "but have different values here"});
}

TEST(LoadHuggingFaceTest, OnePrefixMayDiffer) {
  const StateDict stored = read_hugging_face(llama());
  ExportedModel expected = llama_model();
  load_hugging_face(llama(), expected);
  const auto without_model = [](const std::string& name) {
    return name.substr(std::string("model.").size());
  };
  const auto as_in_program = [](const std::string& name) {
    return "model." + name;
  };
  const auto longer = [](const std::string& name) {
    return "outer.inner.model." + name;
  };
  for (const auto& change :
       {std::function<std::string(const std::string&)>(without_model),
        {as_in_program},
        {longer}}) {
    ExportedModel model = llama_model();
    const std::string folder = folder_of(changed(stored, change));
    load_hugging_face(folder, model);
    expect_equal(model.state_dict(), expected.state_dict());
    // Tied weights are saved under the first name, as they were.
    const std::string saved = new_folder();
    save_hugging_face(
        saved, rename(model.state_dict(), hugging_face_names(folder, model)));
    expect_equal(read_hugging_face(saved), read_hugging_face(folder));
  }
}

TEST(LoadHuggingFaceTest, NamesWhatIsMissingOrTooMuch) {
  StateDict tensors = changed(read_hugging_face(llama()), [](const auto& name) {
    return name == "model.norm.weight" ? "" : name;
  });
  tensors.insert("model.layers.1.extra", at::ones({2}));
  const std::string folder = folder_of(tensors);
  expect_error(folder, {"nothing was loaded",
                        "1 missing (in the module, not in the dict):\n"
                        "  'model.model.norm.weight'",
                        "1 unexpected (in the dict, not in the module):\n"
                        "  'model.model.layers.1.extra'",
                        "save_pretrained(folder, save_original_format=False)"});
  ExportedModel model = llama_model();
  const at::Tensor norm = model.state_dict()["model.model.norm.weight"].clone();
  load_hugging_face(folder, model, HuggingFaceOptions().strict(false));
  EXPECT_TRUE(bit_equal(model.state_dict()["model.model.norm.weight"], norm));
  EXPECT_TRUE(bit_equal(model.state_dict()["model.lm_head.weight"],
                        tensors["model.embed_tokens.weight"]));
  StateDict none;
  none.insert("a.b", at::ones({2}));
  expect_error(folder_of(none), {"none of the module's 12 tensors"},
               HuggingFaceOptions().strict(false));
}

// transformers once saved these, and ignores them today.
TEST(LoadHuggingFaceTest, IgnoresBuffersThatAreConstantsOfTheCode) {
  StateDict tensors = copy_of(read_hugging_face(llama()));
  tensors.insert("model.layers.0.self_attn.rotary_emb.inv_freq", at::ones({4}));
  tensors.insert("model.layers.0.attn.bias", at::ones({1, 1, 8, 8}));
  tensors.insert("model.layers.0.attn.masked_bias", at::ones({}));
  ExportedModel model = llama_model(), expected = llama_model();
  load_hugging_face(folder_of(tensors), model);
  load_hugging_face(llama(), expected);
  expect_equal(model.state_dict(), expected.state_dict());
  tensors["model.layers.0.attn.bias"] = at::ones({16});
  expect_error(folder_of(tensors), {"'model.model.layers.0.attn.bias'"});
}

TEST(LoadHuggingFaceTest, NamesOtherShapesAndKinds) {
  StateDict tensors = copy_of(read_hugging_face(llama()));
  tensors["model.norm.weight"] = at::ones({17});
  tensors["model.layers.0.input_layernorm.weight"] =
      at::ones({16}, at::TensorOptions(at::kLong));
  expect_error(
      folder_of(tensors),
      {"'model.model.norm.weight' is [17] in the dict, but [16] in the "
       "module",
       "'model.model.layers.0.input_layernorm.weight' is Long in the "
       "dict, but Float in the module"},
      HuggingFaceOptions().strict(false));
}

TEST(LoadHuggingFaceTest, SkippedWeightsKeepTheirValues) {
  StateDict tensors = copy_of(read_hugging_face(llama()));
  tensors["model.norm.weight"] = at::ones({17});
  ExportedModel model = llama_model();
  const at::Tensor norm = model.state_dict()["model.model.norm.weight"].clone();
  load_hugging_face(folder_of(tensors), model,
                    HuggingFaceOptions().skip({"model.model.norm."}));
  EXPECT_TRUE(bit_equal(model.state_dict()["model.model.norm.weight"], norm));
  EXPECT_TRUE(bit_equal(model.state_dict()["model.lm_head.weight"],
                        tensors["model.embed_tokens.weight"]));
}

at::Tensor to_bfloat16(const at::Tensor& tensor) {
  return tensor.to(at::kBFloat16);
}

// A Llama converts inside of its norms, so that its nodes have dtypes.
TEST(LoadHuggingFaceTest, AProgramWithDtypesTakesOnlyThose) {
  const StateDict small =
      changed(read_hugging_face(llama()), same_name, to_bfloat16);
  const std::string folder = folder_of(small);
  expect_error(
      folder, {"'model.model.embed_tokens.weight' would become BFloat16, but "
               "the program was exported in Float, and ",
               "of its nodes compute in the dtypes of the export:\n  node '",
               "torch.ops.aten.to.dtype",
               "HuggingFaceOptions().dtype() (--weights_dtype in the shell) to "
               "float32, or export the model in BFloat16"});
  ExportedModel model = llama_model();
  load_hugging_face(folder, model, HuggingFaceOptions().dtype(at::kFloat));
  EXPECT_TRUE(bit_equal(model.state_dict()["model.lm_head.weight"],
                        small["model.embed_tokens.weight"].to(at::kFloat)));
  expect_error(folder, {"HuggingFaceOptions::dtype is Long"},
               HuggingFaceOptions().dtype(at::kLong));
}

// The nodes of this program have no dtypes.
TEST(LoadHuggingFaceTest, ParametersTakeTheStoredDtypeAndStayTheSameObjects) {
  const std::string path = "models/exported/testdata/gpt.pt2";
  ExportedModel model = load_exported(path), other = load_exported(path);
  const StateDict small = changed(other.state_dict(), same_name, to_bfloat16);
  const at::Tensor ids = at::zeros({2, 12}, at::TensorOptions(at::kLong));
  model.layers->forward<at::Tensor>(ids).sum().backward();
  const std::vector<at::Tensor> parameters = model.layers->parameters();
  torch::optim::SGD optimizer(parameters, 0.5);

  load_hugging_face(folder_of(small), model);
  expect_equal(model.state_dict(), small);
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    EXPECT_TRUE(parameters[k].is_same(model.layers->parameters()[k]));
    EXPECT_EQ(parameters[k].scalar_type(), at::kBFloat16);
    EXPECT_FALSE(parameters[k].grad().defined());
  }
  const at::Tensor output = model.layers->forward<at::Tensor>(ids);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  output.sum().backward();
  EXPECT_EQ(parameters[0].grad().scalar_type(), at::kBFloat16);
  const at::Tensor before = parameters[0].detach().clone();
  optimizer.step();
  EXPECT_FALSE(at::equal(parameters[0], before));
  // Also from a model that has the dtype of the folder.
  load_hugging_face(folder_of(small), model,
                    HuggingFaceOptions().dtype(at::kFloat));
  expect_equal(model.state_dict(),
               changed(small, same_name, [](const at::Tensor& each) {
                 return each.to(at::kFloat);
               }));
}

TEST(LoadHuggingFaceTest, ValuesBeyondTheRangeOfTheDtypeChangeNothing) {
  ExportedModel model = load_exported("models/exported/testdata/gpt.pt2");
  const StateDict before = copy_of(model.state_dict());
  const std::string late = "norm.bias";
  StateDict large = changed(before, same_name, [](const auto& each) {
    return each.is_floating_point() ? at::ones_like(each) : each;
  });
  large[late].fill_(70000);
  const std::string folder = folder_of(large);
  const std::string text = value_error_of([&] {
    load_hugging_face(folder, model, HuggingFaceOptions().dtype(at::kHalf));
  });
  EXPECT_EQ(text.rfind(folder + ": '" + late + "': ", 0), 0u) << text;
  EXPECT_NE(text.find(" elements are beyond the range of Half"),
            std::string::npos)
      << text;
  expect_equal(model.state_dict(), before);
  load_hugging_face(folder, model, HuggingFaceOptions().dtype(at::kBFloat16));
}

// What layers have computed from a buffer is computed again.
TEST(LoadHuggingFaceTest, EveryExampleIsReadAsItWasSaved) {
  for (const std::string name : {"tiny", "mlp", "gpt", "lstm", "photos", "unet",
                                 "tables", "regions", "experts"}) {
    SCOPED_TRACE(name);
    const std::string path = testing::example_file(name + ".pt2");
    ExportedModel model = load_exported(path);
    const StateDict scaled =
        changed(model.state_dict(), same_name, [](const at::Tensor& each) {
          return each.is_floating_point() ? each * 2 : each + 1;
        });
    model.load_state_dict(scaled);
    const std::string folder = new_folder();
    save_hugging_face(folder, model.state_dict(), 2000);
    ExportedModel again = load_exported(path);
    load_hugging_face(folder, again);
    expect_equal(again.state_dict(), model.state_dict());
  }
}

TEST(LoadHuggingFaceTest, AModelWithoutValuesIsOnlyChecked) {
  const MetaGuard meta;
  ExportedModel model = llama_model();
  load_hugging_face(llama(), model);
  EXPECT_TRUE(model.state_dict()["model.model.norm.weight"].is_meta());
}

// The records of a model that was exported on the meta device do not show which
// weights are tied, and the folder has the tied weight once.
TEST(LoadHuggingFaceTest, AModelOfTheMetaDeviceHasTiedWeights) {
  const std::string path = new_folder() + "meta.pt2";
  testing::edit_archive(
      llama(".pt2"), path, [](const std::string& name, std::string& content) {
        if (!name.ends_with("weights_config.json")) return true;
        const std::string cpu = "\"type\": \"cpu\"";
        for (std::size_t at = content.find(cpu); at != std::string::npos;
             at = content.find(cpu, at)) {
          content.replace(at, cpu.size(), "\"type\": \"meta\"");
        }
        return true;
      });
  ExportedModel model = load_exported(path, ExportedOptions().weights(false));
  load_hugging_face(llama(), model);
  ExportedModel expected = llama_model();
  load_hugging_face(llama(), expected);
  expect_equal(model.state_dict(), expected.state_dict());
}

// ---- Folders that lie

class LyingFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = new_folder();
    for (const std::string& each : names_in(llama())) {
      write_bytes(folder_ + each, read_bytes(llama() + "/" + each));
    }
    folder_.pop_back();  // without "/"
  }

  std::string path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  static std::string shard(int number) {
    return "model-0000" + std::to_string(number) + "-of-00003.safetensors";
  }
  // Replaces the first `old_text` in a file.
  void edit(const std::string& name, const std::string& old_text,
            const std::string& new_text) const {
    std::string bytes = read_bytes(path(name));
    const std::size_t at = bytes.find(old_text);
    ASSERT_NE(at, std::string::npos);
    write_bytes(path(name), bytes.replace(at, old_text.size(), new_text));
  }

  std::string folder_;
};

TEST(LoadHuggingFaceTest, AFolderThatCannotBeFollowedIsAnErrorOfTheUser) {
  const std::string loop = new_folder() + "loop";
  ASSERT_EQ(symlink(loop.c_str(), loop.c_str()), 0);
  expect_error(loop, {": has neither model.safetensors nor "});
}

TEST_F(LyingFolderTest, AMissingFileIsNamedWithATensor) {
  std::filesystem::remove(path(shard(2)));
  expect_error(folder_, {shard(2) + ": cannot be read: No such file",
                         "'model.layers.0.mlp.gate_proj.weight' is in this "
                         "file"});
}

TEST_F(LyingFolderTest, ATensorThatItsFileLacksIsNamed) {
  edit(kIndex, "\"model.norm.weight\": \"" + shard(3),
       "\"model.norm.weight\": \"" + shard(2));
  expect_error(folder_, {shard(2) + ": lacks 'model.norm.weight'"});
}

TEST_F(LyingFolderTest, ATensorThatTheIndexDoesNotNameIsNamed) {
  edit(kIndex, ",\n    \"model.norm.weight\": \"" + shard(3) + "\"", "");
  expect_error(folder_, {shard(3) + ": has 'model.norm.weight', which " +
                         kIndex + " does not name"});
}

TEST_F(LyingFolderTest, ATensorInTwoFilesIsNamed) {
  StateDict tensors = read_safetensors(path(shard(3))).tensors;
  tensors.insert("model.embed_tokens.weight", at::zeros({48, 16}));
  write_safetensors(path(shard(3)), tensors);
  expect_error(folder_, {"'model.embed_tokens.weight' is in ", shard(1),
                         " and in ", shard(3)});
}

TEST_F(LyingFolderTest, ATensorThatIsInTheIndexTwiceIsNamed) {
  edit(kIndex, "\"model.norm.weight\"", "\"model.embed_tokens.weight\"");
  expect_error(folder_, {std::string(kIndex) +
                         ": has 'model.embed_tokens.weight' twice"});
}

TEST_F(LyingFolderTest, NamesThatLeadOutOfTheFolderAreRefused) {
  write_bytes(folder_ + "/../secret", "x");
  for (const std::string& each : std::vector<std::string>{
           "../secret", "/etc/passwd", "a/b", "..", ".", ""}) {
    SetUp();
    edit(kIndex, "\"" + shard(1) + "\"", "\"" + each + "\"");
    expect_error(folder_, {std::string(kIndex) +
                           ": says that "
                           "'model.embed_tokens.weight' is in '" +
                           each +
                           "', which is not the name of a file in this "
                           "folder"});
  }
}

TEST_F(LyingFolderTest, EveryCutFileIsRefused) {
  ExportedModel model = llama_model();
  const StateDict before = copy_of(model.state_dict());
  for (const std::string& name : {shard(1), shard(3), std::string(kIndex)}) {
    const std::string whole = read_bytes(path(name));
    for (std::size_t size = 0; size + 1 < whole.size(); size += 7) {
      write_bytes(path(name), whole.substr(0, size));
      const std::string text =
          value_error_of([&] { load_hugging_face(folder_, model); });
      ASSERT_EQ(text.rfind(path(name), 0), 0u) << size << " " << text;
    }
    write_bytes(path(name), whole);
  }
  expect_equal(model.state_dict(), before);
}

TEST_F(LyingFolderTest, SizesBeyondTheFileAreRefused) {
  edit(shard(1), "[48,16]", "[98,16]");
  expect_error(folder_, {shard(1) + ": 'model.embed_tokens.weight' is Float of "
                                    "shape [98, 16], which its data from "});
}

TEST_F(LyingFolderTest, OtherFilesAreRefused) {
  write_bytes(path(kIndex), "{}");
  expect_error(folder_, {std::string(kIndex) +
                         ": an entry 'weight_map' is missing in an object"});
  write_bytes(path(kIndex), "[]");
  expect_error(folder_, {std::string(kIndex) +
                         ": expected an object, but found a list"});
  write_bytes(path(kIndex), "{\"weight_map\": {\"a\": 1}}");
  expect_error(folder_, {"expected a text, but found 1; the file is damaged "
                         "(at '/weight_map/a')"});
  std::filesystem::remove(path(kIndex));
  expect_error(folder_,
               {folder_ + ": has neither model.safetensors nor " + kIndex});
  write_bytes(path("pytorch_model.bin"), "x");
  expect_error(folder_, {"its weights are pickled", "save_pretrained(folder)"});
}

// ---- Saving

StateDict three() {
  StateDict dict;
  dict.insert("b", at::arange(4, at::TensorOptions(at::kFloat)));
  dict.insert("a", at::arange(6, at::TensorOptions(at::kLong)));
  dict.insert("c", at::ones({2}, at::TensorOptions(at::kBFloat16)));
  return dict;
}

TEST(SaveHuggingFaceTest, OneFileIfItFits) {
  const std::string folder = new_folder() + "made/with/parents";
  save_hugging_face(folder, three());
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"model.safetensors"});
  const Safetensors file = read_safetensors(folder + "/model.safetensors");
  expect_equal(file.tensors, three());
  EXPECT_EQ(file.metadata, (SafetensorsMetadata{{"format", "pt"}}));
}

TEST(SaveHuggingFaceTest, ShardsHaveAtMostTheirBytesUnlessATensorIsLarger) {
  const std::string folder = new_folder();
  save_hugging_face(folder, three(), 20);
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{
                                  "model-00001-of-00003.safetensors",
                                  "model-00002-of-00003.safetensors",
                                  "model-00003-of-00003.safetensors", kIndex}));
  EXPECT_EQ(read_bytes(folder + kIndex), R"({
  "metadata": {
    "total_parameters": 12,
    "total_size": 68
  },
  "weight_map": {
    "a": "model-00002-of-00003.safetensors",
    "b": "model-00001-of-00003.safetensors",
    "c": "model-00003-of-00003.safetensors"
  }
}
)");
  expect_equal(read_hugging_face(folder), testing::sorted(three()));
  save_hugging_face(folder, three(), 64);
  EXPECT_EQ(read_safetensors(folder + "model-00001-of-00002.safetensors")
                .tensors.keys(),
            (std::vector<std::string>{"b", "a"}));
}

TEST(SaveHuggingFaceTest, ViewsOfOneMemoryWithOtherValuesAreNotTied) {
  const std::string folder = new_folder();
  const at::Tensor z =
      at::view_as_complex(at::tensor({1.0f, 2.0f}).view({1, 2}));
  StateDict dict;
  dict.insert("z", z);
  dict.insert("conj", z.conj());
  dict.insert("again", z);
  save_hugging_face(folder, dict);
  const StateDict found = read_hugging_face(folder);
  EXPECT_EQ(found.size(), 2u);
  EXPECT_TRUE(bit_equal(found["z"], z));
  EXPECT_TRUE(bit_equal(found["conj"], z.conj().resolve_conj()));
}

TEST(SaveHuggingFaceTest, IsWhatTransformersWrites) {
  ExportedModel model = llama_model();
  load_hugging_face(llama(), model);
  const StateDict tensors =
      rename(model.state_dict(), hugging_face_names(llama(), model));
  const std::string folder = new_folder();
  save_hugging_face(folder, tensors, 5000);
  EXPECT_EQ(names_in(folder), names_in(llama()));
  EXPECT_EQ(read_bytes(folder + kIndex), read_bytes(llama() + "/" + kIndex));
}

TEST(SaveHuggingFaceTest, ReplacesAnEarlierSaveAndKeepsOtherFiles) {
  const std::string folder = new_folder();
  write_bytes(folder + "config.json", "{}");
  write_bytes(folder + "model-other.safetensors", "x");
  const std::vector<std::string> kept = {"config.json",
                                         "model-other.safetensors"};
  const auto names = [&] {
    std::vector<std::string> found = names_in(folder);
    for (const std::string& each : kept) {
      EXPECT_EQ(std::count(found.begin(), found.end(), each), 1);
      found.erase(std::remove(found.begin(), found.end(), each), found.end());
    }
    return found;
  };
  for (const auto& [bytes, files] :
       std::vector<std::pair<int64_t, std::size_t>>{
           {1000, 1}, {20, 4}, {64, 3}, {20, 4}, {20, 4}, {1000, 1}}) {
    StateDict dict = three();
    dict["b"] += bytes;
    save_hugging_face(folder, dict, bytes);
    EXPECT_EQ(names().size(), files);
    EXPECT_TRUE(bit_equal(read_hugging_face(folder)["b"], dict["b"]));
  }
}

TEST(SaveHuggingFaceTest, AnErrorLeavesTheOldFiles) {
  const std::string folder = new_folder();
  save_hugging_face(folder, three(), 20);
  const auto names = names_in(folder);
  StateDict bad = three();
  bad.insert("d", at::empty({2}, at::TensorOptions(at::kMeta)));
  EXPECT_EQ(value_error_of([&] { save_hugging_face(folder, bad, 20); }),
            "'d' is on the meta device, and so has no values");
  EXPECT_EQ(value_error_of([&] { save_hugging_face(folder, three(), 0); }),
            "files of at most 0 bytes; must be at least 1");
  EXPECT_EQ(value_error_of([&] { save_hugging_face(folder, StateDict(), 1); }),
            "there are no tensors to save");
  EXPECT_EQ(names_in(folder), names);
  EXPECT_EQ(read_hugging_face(folder).size(), 3u);
}

TEST(HuggingFaceChecksumTest, DependsOnNamesShapesAndValues) {
  const auto sum = [](const StateDict& dict, int64_t bytes = 1000) {
    const std::string folder = new_folder();
    save_hugging_face(folder, dict, bytes);
    return hugging_face_checksum(folder);
  };
  const uint32_t expected = sum(three());
  EXPECT_EQ(sum(three(), 20), expected);
  const std::string file = new_folder() + "w.safetensors";
  write_safetensors(file, three());
  EXPECT_EQ(hugging_face_checksum(file), expected);
  EXPECT_EQ(hugging_face_checksum(three()), expected);
  StateDict meta = three();
  meta["b"] = meta["b"].to(at::kMeta);
  EXPECT_EQ(value_error_of([&] { hugging_face_checksum(meta); }),
            "'b' is on the meta device, and so has no values");
  StateDict tied = three();
  tied.insert("a.tied", tied["b"]);
  EXPECT_EQ(hugging_face_checksum(tied), sum(tied));
  EXPECT_NE(sum(changed(three(), [](const auto& name) { return name + "x"; })),
            expected);
  StateDict other = three();
  other["b"][3] = 7;
  EXPECT_NE(sum(other), expected);
  other = three();
  other["b"] = other["b"].view({2, 2});
  EXPECT_NE(sum(other), expected);
}

}  // namespace
}  // namespace gpipe
