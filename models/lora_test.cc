// Adapters of exported programs, with the bits of Python's PEFT.
#include "models/lora.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "balancing/profile.h"
#include "gpipe/gpipe.h"
#include "gpipe/meta.h"
#include "gpipe/schedule.h"
#include "models/testing/examples.h"
#include "models/testing/files.h"
#include "models/weights/safetensors.h"

namespace gpipe {
namespace {

using at::Tensor;
using testing::value_error_of;

constexpr char kPrefix[] = "base_model.model.";

std::string path_of(const std::string& name) {
  return "models/exported/testdata/lora/" + name;
}

// What Python computed, see models/exported/testdata/lora/make.py.
struct Python {
  explicit Python(const std::string& name)
      : name(name), file(read_safetensors(path_of(name + ".safetensors"))) {}

  const Tensor& at(const std::string& each) const { return file.tensors[each]; }
  // Returns the tensors whose names begin with `kind`, by the rest of the name.
  StateDict all(const std::string& kind) const {
    StateDict found;
    for (const auto& item : file.tensors) {
      if (item.key().starts_with(kind + ".")) {
        found.insert(item.key().substr(kind.size() + 1), item.value());
      }
    }
    return found;
  }
  std::string program() const { return path_of(name + ".pt2"); }
  std::string adapter() const { return path_of(name + "_adapter"); }
  // Other machines have other kernels.
  double tolerance() const {
    return testing::is_made_here(file.metadata) ? 0 : 1e-5;
  }

  const std::string name;
  const Safetensors file;
};

::testing::AssertionResult is_same(const Tensor& a, const Tensor& b,
                                   double tolerance) {
  const bool same =
      tolerance == 0 ? a.equal(b) : a.allclose(b, tolerance, tolerance);
  if (same) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << (a - b).abs().max();
}

ExportedModel adapted(const Python& python, int64_t max_crossing = 4,
                      double dropout = 0) {
  ExportedModel model =
      add_lora(load_exported(python.program(),
                             ExportedOptions().max_crossing(max_crossing)),
               read_lora_options(python.adapter()).dropout(dropout));
  load_lora(python.adapter(), *model.layers);
  return model;
}

// Returns the gradients of the adapters by the names in their file.
StateDict gradients(const torch::nn::Module& module) {
  StateDict grads;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().grad().defined()) continue;
    const std::size_t end = item.key().rfind(".lora.");
    EXPECT_NE(end, std::string::npos) << item.key();
    grads.insert(kPrefix +
                     item.key().substr(item.key().find('.') + 1,
                                       end - item.key().find('.') - 1) +
                     ".lora_" + item.key().substr(end + 6),
                 item.value().grad());
  }
  return grads;
}

class LoraTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  const Python python_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(, LoraTest,
                         ::testing::Values("llama", "gpt2", "repeated"),
                         [](const auto& each) {
                           return std::string(each.param);
                         });

TEST_P(LoraTest, OutputsAndGradientsHaveThePythonsBits) {
  for (const int64_t crossing : {0, 4}) {
    const ExportedModel model = adapted(python_, crossing);
    const Tensor output = const_cast<torch::nn::Sequential&>(model.layers)
                              ->forward(python_.at("input.0"));
    EXPECT_TRUE(is_same(output, python_.at("output.0"), python_.tolerance()));
    (output * python_.at("weight.0")).sum().backward();
    const StateDict found = gradients(*model.layers);
    const StateDict expected = python_.all("grad");
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& each : expected) {
      EXPECT_TRUE(
          is_same(found[each.key()], each.value(), python_.tolerance() * 100))
          << each.key();
    }
  }
}

TEST_P(LoraTest, NewAdaptersHaveThePythonsValuesAndChangeNothing) {
  torch::manual_seed(5);
  ExportedModel model = add_lora(load_exported(python_.program()),
                                 read_lora_options(python_.adapter()));
  testing::expect_equal(testing::sorted(lora_state_dict(*model.layers)),
                        python_.all("drawn"));
  EXPECT_TRUE(is_same(model.layers->forward(python_.at("input.0")),
                      python_.at("base.0"), python_.tolerance()));
}

TEST_P(LoraTest, OnlyAdaptersAreTrainedAndTheBaseIsInTheStateDict) {
  const StateDict before = load_exported(python_.program()).state_dict();
  const ExportedModel model = adapted(python_);
  std::size_t trained = 0;
  for (const auto& item : model.layers->named_parameters()) {
    const bool is_adapter = item.key().find(".lora.") != std::string::npos;
    EXPECT_EQ(item.value().requires_grad(), is_adapter) << item.key();
    trained += is_adapter;
  }
  EXPECT_EQ(trained, python_.all("grad").size());
  testing::expect_equal(model.state_dict(), before);
}

TEST_P(LoraTest, DropoutHasThePythonsBitsInTrainingAndIsOffInEval) {
  ExportedModel model = adapted(python_, /*max_crossing=*/4, /*dropout=*/0.25);
  torch::manual_seed(7);
  EXPECT_TRUE(is_same(model.layers->forward(python_.at("input.0")),
                      python_.at("dropped.0"), python_.tolerance()));
  model.layers->eval();
  EXPECT_TRUE(is_same(model.layers->forward(python_.at("input.0")),
                      python_.at("output.0"), python_.tolerance()));
}

TEST_P(LoraTest, MergedWeightsHaveThePythonsBits) {
  ExportedModel model = adapted(python_);
  merge_lora(*model.layers);
  EXPECT_TRUE(lora_state_dict(*model.layers).is_empty());
  const StateDict merged = model.state_dict();
  for (const auto& each : python_.all("weights")) {
    EXPECT_TRUE(is_same(merged[each.key()], each.value(), python_.tolerance()))
        << each.key();
  }
  EXPECT_TRUE(is_same(model.layers->forward(python_.at("input.0")),
                      python_.at("merged.0"), python_.tolerance()));
  for (const auto& each : model.layers->named_parameters()) {
    EXPECT_EQ(each.key().find("lora"), std::string::npos);
  }
}

TEST_P(LoraTest, WeightsAreMergedWithoutTheModel) {
  StateDict weights = load_exported(python_.program()).state_dict();
  merge_lora(python_.adapter(), weights);
  const StateDict merged = python_.all("weights");
  ExportedModel base = load_exported(python_.program());
  for (const auto& each : base.state_dict()) {
    const Tensor* const changed = merged.find(each.key());
    EXPECT_TRUE(is_same(weights[each.key()], changed ? *changed : each.value(),
                        python_.tolerance()))
        << each.key();
  }
}

TEST(Lora, AnAdapterOfATiedWeightThatIsStoredOnceIsMerged) {
  // As transformers stores a model with tied embeddings.
  const Python python("repeated");
  const StateDict all = load_exported(python.program()).state_dict();
  // Of Llama, and of T5, BART and XLNet.
  for (const char* name :
       {"model.embed_tokens.weight", "shared.weight", "model.shared.weight",
        "transformer.word_embedding.weight"}) {
    StateDict stored;
    stored.insert(name, all["embed.weight"].clone());
    stored.insert("mix.weight", all["mix.weight"].clone());
    merge_lora(python.adapter(), stored);
    EXPECT_EQ(stored.size(), 2u);
    EXPECT_TRUE(is_same(stored[name], python.at("weights.embed.weight"),
                        python.tolerance()));
    EXPECT_TRUE(is_same(stored["mix.weight"], python.at("weights.mix.weight"),
                        python.tolerance()));
  }
}

TEST(Lora, AnAdapterOfATiedWeightThatIsStoredTwiceIsMergedIntoBoth) {
  const Python python("repeated");
  const StateDict all = load_exported(python.program()).state_dict();
  StateDict stored;
  for (const char* name : {"head.weight", "model.embed_tokens.weight"}) {
    stored.insert(name, all["embed.weight"].clone());
  }
  stored.insert("mix.weight", all["mix.weight"].clone());
  merge_lora(python.adapter(), stored);
  for (const char* name : {"head.weight", "model.embed_tokens.weight"}) {
    EXPECT_TRUE(is_same(stored[name], python.at("weights.embed.weight"),
                        python.tolerance()));
  }
}

TEST_P(LoraTest, AWrittenAdapterIsReadAgain) {
  const std::string folder = testing::new_folder();
  const ExportedModel model = adapted(python_);
  const LoraOptions options = read_lora_options(python_.adapter());
  save_lora(folder, *model.layers, options);
  const LoraOptions again = read_lora_options(folder);
  EXPECT_EQ(again.rank(), 4);
  EXPECT_EQ(again.alpha(), 6);
  EXPECT_EQ(again.rank_stabilized(), options.rank_stabilized());
  EXPECT_EQ(again.targets(), options.targets());
  testing::expect_equal(
      testing::sorted(
          read_safetensors(folder + "adapter_model.safetensors").tensors),
      read_safetensors(python_.adapter() + "/adapter_model.safetensors")
          .tensors);
}

// Returns loss and gradients of a step, with dropout on the adapters.
std::pair<Tensor, StateDict> step(const Python& python,
                                  std::vector<int64_t> balance,
                                  const Schedule& schedule,
                                  Checkpoint checkpoint) {
  ExportedModel model = adapted(python, /*max_crossing=*/4, /*dropout=*/0.25);
  const auto layers = static_cast<int64_t>(model.layers->size());
  if (balance.empty()) {
    balance = {layers};
  } else {
    balance.push_back(layers - balance[0]);
  }
  GPipe pipeline(model.layers, GPipeOptions(balance)
                                   .devices({at::kCPU, at::kCPU})
                                   .checkpoint(checkpoint)
                                   .threads_per_partition(1));
  torch::manual_seed(9);
  const auto loss = [](const Tensor& output, const Tensor& target) {
    return (output * target).mean();
  };
  const StepResult result = pipeline->train_step(
      python.at("input.0"), python.at("weight.0"), loss, schedule);
  return {result.loss, gradients(*pipeline)};
}

TEST_P(LoraTest, CutsSchedulesAndRecomputesKeepTheBits) {
  const auto [loss, grads] =
      step(python_, {}, one_forward_one_backward(1, 4), Checkpoint::kNever);
  EXPECT_EQ(grads.size(), python_.all("grad").size());
  // Cuts before the first adapter, between adapters, and after the last one.
  const auto layers =
      static_cast<int64_t>(load_exported(python_.program()).layers->size());
  for (const int64_t first : {int64_t{1}, layers / 2, layers - 1}) {
    for (const Checkpoint checkpoint :
         {Checkpoint::kNever, Checkpoint::kAlways}) {
      for (const Schedule& schedule :
           {one_forward_one_backward(2, 4), zero_bubble_h1(2, 4),
            with_offload(one_forward_one_backward(2, 4),
                         [](int, int) { return true; })}) {
        const auto [other, found] =
            step(python_, {first}, schedule, checkpoint);
        EXPECT_TRUE(other.equal(loss));
        testing::expect_equal(found, grads);
      }
    }
  }
}

TEST(Lora, APartHasTheAdaptersOfTheWhole) {
  const Python python("llama");
  const LoraOptions options = read_lora_options(python.adapter());
  torch::manual_seed(5);
  const ExportedModel whole =
      add_lora(load_exported(python.program()), options);
  const StateDict all = lora_state_dict(*whole.layers);
  const auto layers = static_cast<int64_t>(whole.layers->size());
  std::size_t found = 0;
  for (const int64_t first : {int64_t{0}, layers / 2}) {
    const int64_t count = first == 0 ? layers / 2 : layers - layers / 2;
    torch::manual_seed(5);
    ExportedModel part =
        add_lora(load_exported(python.program(), first, count), options);
    for (const auto& each : lora_state_dict(*part.layers)) {
      EXPECT_TRUE(all[each.key()].equal(each.value())) << each.key();
      ++found;
    }
    load_lora(python.adapter(), *part.layers, /*strict=*/false);
    EXPECT_NE(value_error_of([&] {
                load_lora(python.adapter(), *part.layers);
              }).find("unexpected"),
              std::string::npos);
  }
  EXPECT_EQ(found, all.size());
}

TEST(Lora, ProfilesSeeThatOnlyAdaptersAreTrained) {
  const Python python("llama");
  const auto bytes = [&](const ExportedModel& model) {
    int64_t all = 0, trained = 0;
    const auto options =
        balancing::TimeOptions().timeout(0.01).split_backward(true);
    const balancing::Profile profile =
        balancing::profile(model.layers, python.at("input.0"), options);
    for (const auto& each : profile.memory.layers) {
      all += each.parameter_bytes;
      trained += each.trained_bytes;
    }
    return std::pair(all, trained);
  };
  const auto [base, base_trained] = bytes(load_exported(python.program()));
  EXPECT_EQ(base_trained, base);
  const ExportedModel model = adapted(python);
  int64_t adapters = 0;
  for (const auto& each : lora_state_dict(*model.layers)) {
    adapters += static_cast<int64_t>(each.value().nbytes());
  }
  const auto [all, trained] = bytes(model);
  EXPECT_EQ(all, base + adapters);
  EXPECT_EQ(trained, adapters);
}

TEST(Lora, AModelWithoutValuesHasAdaptersWithoutValues) {
  const Python python("llama");
  ExportedModel model = [&] {
    const MetaGuard meta;
    return load_exported(python.program());
  }();
  add_lora(model, read_lora_options(python.adapter()));
  const StateDict own = lora_state_dict(*model.layers);
  EXPECT_EQ(own.size(), python.all("grad").size());
  for (const auto& each : own) EXPECT_TRUE(each.value().is_meta());
  load_lora(python.adapter(), *model.layers);  // compares names and shapes
}

TEST(Lora, ABaseOf16BitsHasAdaptersInFloat32) {
  const Python python("llama");
  ExportedModel model = load_exported(python.program());
  model.layers->to(at::kBFloat16);
  model = add_lora(model, read_lora_options(python.adapter()));
  for (const auto& each : lora_state_dict(*model.layers)) {
    EXPECT_EQ(each.value().scalar_type(), at::kFloat);
    EXPECT_TRUE(each.value().equal(each.value().to(at::kBFloat16)))
        << "PEFT rounds the first values";
  }
  for (const auto& each : model.state_dict()) {
    EXPECT_EQ(each.value().scalar_type(), at::kBFloat16) << each.key();
  }
}

TEST(Lora, TargetsMustFitLinearModules) {
  const Python python("llama");
  const auto error = [&](const char* target) {
    ExportedModel model = load_exported(python.program());
    const std::string text = value_error_of([&] {
      add_lora(model, LoraOptions().targets({"q_proj", target}));
    });
    for (const auto& each : model.layers->parameters()) {
      EXPECT_TRUE(each.requires_grad()) << "nothing has changed";
    }
    EXPECT_TRUE(lora_state_dict(*model.layers).is_empty());
    return text;
  };
  EXPECT_EQ(error("q_prj"),
            "no linear module has the name 'q_prj' as the last part of its "
            "name; linear modules end in:\n  down_proj\n  gate_proj\n  k_proj"
            "\n  lm_head\n  o_proj\n  q_proj\n  up_proj\n  v_proj");
  EXPECT_EQ(error("embed_tokens"),
            "the module 'model.embed_tokens', which a target names, does not "
            "multiply by its weight in a linear node outside of control flow");
  EXPECT_NE(error("0.mlp").find("'model.layers.0.mlp', which"),
            std::string::npos);
}

TEST(Lora, AModuleThatABranchCallsIsRefused) {
  const ExportedModel model = load_exported(path_of("branch.pt2"));
  EXPECT_EQ(
      value_error_of([&] { add_lora(model, LoraOptions().targets({"mix"})); }),
      "the weight of the module 'mix', which a target names, is also used in a "
      "branch or a loop of the program, where an adapter does not act; leave "
      "it "
      "out of the targets");
  add_lora(model, LoraOptions().targets({"last"}));
}

TEST(Lora, AModuleOfSeveralWeightsIsRefused) {
  const ExportedModel model = load_exported(path_of("pair.pt2"));
  EXPECT_EQ(
      value_error_of([&] { add_lora(model, LoraOptions().targets({"0"})); }),
      "the module '0', which a target names, multiplies by several "
      "weights; leave it out of the targets");
}

TEST(Lora, OptionsAreChecked) {
  ExportedModel model = load_exported(Python("llama").program());
  const auto error = [&](const LoraOptions& options) {
    return value_error_of([&] { add_lora(model, options); });
  };
  const LoraOptions good = LoraOptions().targets({"q_proj"});
  EXPECT_EQ(error(LoraOptions(good).rank(0)),
            "the rank of an adapter is 0, but must be at least 1");
  EXPECT_EQ(error(LoraOptions(good).dropout(1)),
            "the dropout of an adapter is 1, but must be from 0 to below 1");
  EXPECT_EQ(error(LoraOptions()),
            "add_lora() needs targets: the last parts of the names of linear "
            "modules, such as \"q_proj\"");
  add_lora(model, good);
  EXPECT_EQ(error(good),
            "the module 'model.layers.0.self_attn.q_proj' has an adapter "
            "already; call merge_lora() first");
}

TEST(Lora, AnAdapterOfATiedWeightChangesItsModuleOnlyUntilItIsMerged) {
  const Python python("repeated");
  const Tensor tokens = python.at("input.0");
  ExportedModel base = load_exported(python.program());
  const Tensor weight = base.state_dict()["embed.weight"].clone();
  ExportedModel model =
      add_lora(load_exported(python.program()),
               read_lora_options(python.adapter()).targets({"head"}));
  const StateDict own = lora_state_dict(*model.layers);
  ASSERT_EQ(own.size(), 2u);
  at::Tensor(own["base_model.model.head.lora_B.weight"]).fill_(1);
  EXPECT_FALSE(
      base.layers->forward(tokens).equal(model.layers->forward(tokens)));
  EXPECT_TRUE(model.state_dict()["embed.weight"].equal(weight));

  merge_lora(*model.layers);
  EXPECT_TRUE(lora_state_dict(*model.layers).is_empty());
  const Tensor merged = model.state_dict()["embed.weight"].clone();
  EXPECT_TRUE(model.state_dict()["head.weight"].equal(merged));
  EXPECT_FALSE(merged.equal(weight));
  base.load_state_dict(model.state_dict());
  EXPECT_TRUE(
      base.layers->forward(tokens).equal(model.layers->forward(tokens)));
}

TEST(Lora, PartsPassTheAdapterOfAModuleThatBothCall) {
  const Python python("repeated");
  const LoraOptions options = read_lora_options(python.adapter());
  const auto layers =
      static_cast<int64_t>(load_exported(python.program()).layers->size());
  ASSERT_GE(layers, 4);
  for (int64_t first = 1; first < layers; ++first) {
    torch::nn::Sequential joined;
    for (const auto& [begin, count] :
         {std::pair(int64_t{0}, first), std::pair(first, layers - first)}) {
      ExportedModel part =
          add_lora(load_exported(python.program(), begin, count), options);
      load_lora(python.adapter(), *part.layers, /*strict=*/false);
      for (const auto& layer : *part.layers) joined->push_back(layer);
    }
    const Tensor tokens = python.at("input.0");
    EXPECT_TRUE(is_same(joined->forward(tokens), python.at("output.0"),
                        python.tolerance()))
        << first;
    merge_lora(*joined);
    EXPECT_TRUE(is_same(joined->forward(tokens), python.at("merged.0"),
                        python.tolerance()))
        << first;
  }
}

TEST(Lora, AMergedModuleOfSeveralLayersTakesANewAdapter) {
  const Python python("repeated");
  ExportedModel model = adapted(python);
  merge_lora(*model.layers);
  const LoraOptions options = read_lora_options(python.adapter());
  model = add_lora(model, options);
  EXPECT_EQ(lora_state_dict(*model.layers).size(), 4u);
  EXPECT_TRUE(is_same(model.layers->forward(python.at("input.0")),
                      python.at("merged.0"), python.tolerance()))
      << "B is 0";
  EXPECT_EQ(value_error_of([&] { add_lora(model, options); }),
            "the module 'mix' has an adapter already; call merge_lora() first");
}

TEST(Lora, NamesInFilesBeginAfterTheWrapper) {
  ExportedModel model = add_lora(
      load_exported(Python("llama").program()),
      LoraOptions().targets({"layers.1.self_attn.q_proj"}).wrapper("model"));
  EXPECT_EQ(lora_state_dict(*model.layers).keys()[0],
            "base_model.model.layers.1.self_attn.q_proj.lora_A.weight");

  const auto options = LoraOptions().wrapper("model").targets(
      {"model.layers.1.self_attn.q_proj", "v_proj"});
  model = add_lora(load_exported(Python("llama").program()), options);
  const std::string folder = testing::new_folder();
  save_lora(folder, *model.layers, options);
  EXPECT_EQ(read_lora_options(folder).targets(),
            (std::vector<std::string>{"layers.1.self_attn.q_proj", "v_proj"}));
}

TEST(Lora, AWrapperWithoutAdaptersIsRefused) {
  EXPECT_EQ(value_error_of([&] {
              add_lora(load_exported(Python("llama").program()),
                       LoraOptions().targets({"q_proj"}).wrapper("modle"));
            }),
            "LoraOptions::wrapper is 'modle', but no module with an adapter is "
            "in it; "
            "the first one is 'model.layers.0.self_attn.q_proj'");
}

}  // namespace
}  // namespace gpipe
