// Files that load_exported() refuses, and what it says.
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpipe/base/json.h"
#include "models/exported/exported.h"
#include "models/testing/examples.h"
#include "models/testing/files.h"
#include "models/weights/torch_file.h"

namespace gpipe {
namespace {

using testing::edit_archive;
using testing::edit_program;
using testing::example_file;
using ::testing::HasSubstr;
using testing::new_folder;
using testing::value_error_of;

// Returns the error for a file, without its path.
std::string error_for(const std::string& path) {
  const std::string error = value_error_of([&] { load_exported(path); });
  const std::string start = "'" + path + "' ";
  return error.rfind(start, 0) == 0 ? error.substr(start.size()) : error;
}

TEST(ExportedRefusalsTest, WeightsOfTheMetaDeviceNeedAMetaGuard) {
  EXPECT_EQ(
      error_for(example_file("weightless.pt2")),
      "has no values of '0.weight', because the model was exported on the "
      "meta device; load it under a gpipe::MetaGuard for a dry run, or "
      "export a model whose weights are on the CPU");
}

// Returns the error for tiny.pt2 with one text replaced.
std::string error_with(const std::string& old_text,
                       const std::string& new_text) {
  const std::string path = new_folder() + "edited.pt2";
  edit_program(example_file("tiny.pt2"), path, old_text, new_text);
  return error_for(path);
}

// Returns the error for tiny.pt2 with a text of one record replaced, or without
// the record if `old_text` is empty.
std::string error_with_record(const std::string& record,
                              const std::string& old_text,
                              const std::string& new_text) {
  const std::string path = new_folder() + "edited.pt2";
  bool found = false;
  edit_archive(example_file("tiny.pt2"), path,
               [&](const std::string& name, std::string& content) {
                 if (name != record) return true;
                 found = true;
                 if (old_text.empty()) return false;
                 const auto at = content.find(old_text);
                 EXPECT_NE(at, std::string::npos);
                 content.replace(at, old_text.size(), new_text);
                 return true;
               });
  EXPECT_TRUE(found);
  return error_for(path);
}

constexpr char kWeights[] = "data/weights/model_weights_config.json";

TEST(ExportedRefusalsTest, AnUnchangedCopyLoads) {
  EXPECT_EQ(error_with("TRAINING", "TRAINING"), "no error");
}

TEST(ExportedRefusalsTest, OtherFilesAreNamed) {
  const std::string folder = new_folder();
  EXPECT_EQ(error_for(folder + "missing.pt2"),
            "is not a regular file, or cannot be read");
  testing::write_bytes(folder + "text.pt2", "PK, but no archive");
  EXPECT_EQ(error_for(folder + "text.pt2"),
            "is not a zip archive: it is damaged, or torch.export.save did not "
            "write it");
  StateDict dict;
  dict.insert("weight", at::zeros({2}));
  write_torch_file(folder + "weights.pt", dict);
  EXPECT_EQ(error_for(folder + "weights.pt"),
            "is a zip archive, but not from torch.export.save (record "
            "'archive_format' is not 'pt2')");
  torch::save(torch::nn::Linear(2, 1), folder + "script.pt");
  EXPECT_EQ(error_for(folder + "script.pt"),
            "is an archive of TorchScript, as torch.jit.save writes in Python "
            "and torch::save in C++. Export the model again in Python with "
            "torch.export.save. To use its weights alone, save them in Python: "
            "torch.save(torch.jit.load(path).state_dict(), path)");
}

TEST(ExportedRefusalsTest, VersionsAndDialects) {
  EXPECT_EQ(
      error_with("\"major\": 8, \"minor\": 20", "\"major\": 9, \"minor\": 1"),
      "has version 9.1 of the schema, but only 8.x is read; export again "
      "with PyTorch 2.11 to 2.15");
  EXPECT_EQ(error_with("\"minor\": 20", "\"minor\": 17"), "no error");
  EXPECT_EQ(error_with("TRAINING", "ATEN"),
            "is in dialect 'ATEN', but only 'TRAINING' can be trained; save "
            "what torch.export.export returns, without run_decompositions() "
            "and other passes");
  EXPECT_EQ(error_with_record("byteorder", "little", "big"),
            "has byte order 'big'; only 'little' is read");
}

TEST(ExportedRefusalsTest, OperatorsThatLibTorchLacks) {
  const std::string error =
      error_with("torch.ops.aten.dropout.default", "torch.ops.my.op.default");
  EXPECT_EQ(error,
            "cannot run as a pipeline:\n  node 'dropout' "
            "(torch.ops.my.op.default) of module '2', File \"site-packages/"
            "torch/nn/modules/dropout.py\", line 73, in forward: return "
            "F.dropout(input, self.p, self.training, self.inplace) is an "
            "operator that LibTorch does not have; load the library that "
            "registers it (programs: --operators=LIBRARY.so), or export the "
            "model without it");
  EXPECT_THAT(error_with("\"name\": \"p\"", "\"name\": \"q\""),
              HasSubstr("lacks the argument 'p' of the operator"));
}

// A float of the call, not of the export, as dropout's probability.
TEST(ExportedRefusalsTest, NumbersAsInputsAreNamedAlsoIfAnOperatorReadsThem) {
  const std::string folder = new_folder();
  edit_program(
      example_file("tiny.pt2"), folder + "given.pt2",
      R"({"user_input": {"arg": {"as_tensor": {"name": "input"}}}})",
      R"({"user_input": {"arg": {"as_tensor": {"name": "input"}}}},)"
      R"({"user_input": {"arg": {"as_sym_float": {"as_name": "q"}}}})");
  edit_program(folder + "given.pt2", folder + "read.pt2",
               R"({"as_float": 0.5})", R"({"as_sym_float": {"as_name": "q"}})");
  EXPECT_EQ(error_for(folder + "read.pt2"),
            "cannot run as a pipeline:\n  input 'q' is of kind 'as_sym_float', "
            "but a pipeline passes tensors only; pass a tensor, or fix the "
            "value in the export");
}

TEST(ExportedRefusalsTest, OperatorsOfPythonOnlyHaveTheirOwnAdvice) {
  const auto advice = [](const std::string& name) {
    const std::string error =
        error_with("torch.ops.aten.dropout.default", name);
    return error.substr(error.rfind("self.inplace) ") + 14);
  };
  EXPECT_EQ(advice("torch.ops.higher_order.associative_scan"),
            "is a higher-order operator, which is not supported; use cumsum, "
            "cumprod or logcumsumexp, or write a Python loop, which the export "
            "unrolls (transformers: use_associative_scan=False)");
  EXPECT_EQ(advice("torch.ops.higher_order.flex_attention"),
            "is a higher-order operator, which is not supported; use "
            "scaled_dot_product_attention (transformers: "
            "attn_implementation=\"sdpa\")");
  EXPECT_EQ(advice("torch.ops.higher_order.out_dtype"),
            "is a higher-order operator, which is not supported; export the "
            "model without it");
  EXPECT_EQ(advice("torch.ops.torch_nn._linear_cross_entropy_chunked.default"),
            "is an operator that only Python has; call linear_cross_entropy "
            "without options");
  EXPECT_EQ(advice("torch._functorch.predispatch._add_batch_dim"),
            "is a step of torch.vmap or torch.func.jvp, which only Python can "
            "run; write the function for all rows at once");
}

TEST(ExportedRefusalsTest, ACallOfVmapIsNamedOnce) {
  const std::string error = error_for(example_file("vmapped.pt2"));
  EXPECT_THAT(error,
              HasSubstr("in forward: return torch.vmap(torch.sin)(self.fc(x)) "
                        "is a step of torch.vmap or torch.func.jvp"));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
}

TEST(ExportedRefusalsTest, DamagedControlFlow) {
  const auto error_of = [](const std::string& example,
                           const std::string& old_text,
                           const std::string& new_text) {
    const std::string path = new_folder() + "edited.pt2";
    edit_program(example_file(example), path, old_text, new_text);
    return error_for(path);
  };
  const std::string output =
      R"("outputs": [{"as_tensor": {"name": "sin"}}], "nodes")";
  EXPECT_THAT(
      error_of("alternating.pt2", output, R"("outputs": [], "nodes")"),
      HasSubstr("has 1 results, and a graph with 0 outputs; the file is "
                "damaged"));
  EXPECT_THAT(
      error_of("alternating.pt2", "higher_order.cond", "higher_order.scan"),
      HasSubstr("has 2 graphs and 2 other arguments, but is known with 1 "
                "and 3"));
  EXPECT_THAT(error_of("looped.pt2", "{\"as_tensors\": [{\"name\": \"zeros\"}",
                       "{\"as_tensor\": {\"name\": \"zeros\"}, \"x\": [{}"),
              HasSubstr("the file is damaged"));
  // An operator in a branch that LibTorch lacks has a name and a place.
  EXPECT_THAT(error_of("alternating.pt2", "torch.ops.aten.sin.default",
                       "torch.ops.my.op.default"),
              HasSubstr("node 'sin' (torch.ops.my.op.default)"));
}

TEST(ExportedRefusalsTest, OutputsThatCannotBeConcatenated) {
  EXPECT_THAT(error_with("\"user_output\"", "\"buffer_mutation\""),
              HasSubstr("an output is a buffer_mutation, as in a decomposed "
                        "program"));
}

TEST(ExportedRefusalsTest, DamagedWeights) {
  const std::string place = " (in the weight '0.weight')";
  EXPECT_EQ(error_with_record(kWeights, "\"use_pickle\": false",
                              "\"use_pickle\": true"),
            "is pickled, and pickles are not read; export plain tensors "
            "instead of tensor subclasses and custom objects" +
                place);
  EXPECT_EQ(
      error_with_record(kWeights, "\"as_int\": 2", "\"as_int\": 3"),
      "needs 24 bytes, but record 'data/weights/weight_0' has 16" + place);
  EXPECT_EQ(error_with_record(kWeights, "\"as_int\": 2", "\"as_int\": -2"),
            "has a size or a stride of -2" + place);
  EXPECT_EQ(error_with_record(kWeights, "\"as_int\": 2",
                              "\"as_int\": 9223372036854775807"),
            "has sizes and strides beyond 64 bits" + place);
  EXPECT_EQ(
      error_with_record(kWeights, "\"dtype\": 7", "\"dtype\": 14"),
      "the dtype number 14 is unknown; 1 to 13 and 28 to 35 are known" + place);
  EXPECT_EQ(error_with_record(kWeights, "\"layout\": 7", "\"layout\": 1"),
            "the layout number 1 is not supported; only strided tensors (7) "
            "are" +
                place);
  EXPECT_EQ(error_with_record("data/weights/weight_0", "", ""),
            "has no record 'data/weights/weight_0'" + place);
  EXPECT_EQ(error_with_record(kWeights, "", ""), "has no values of '0.weight'");
}

// Where a weight of a copy of a file is.
struct Place {
  std::string weight, record;
  std::vector<int64_t> strides;
  int64_t offset;
  bool trained;
};

// Returns the error for seen.pt2 with weights at other places.
std::string error_with_places(const std::vector<Place>& places) {
  const std::string path = new_folder() + "edited.pt2";
  edit_archive(example_file("seen.pt2"), path,
               [&](const std::string& name, std::string& content) {
                 if (name != kWeights) return true;
                 internal::Json json = internal::parse_json(content, "");
                 for (const Place& each : places) {
                   internal::Json& entry = json["config"][each.weight];
                   entry["path_name"] = each.record;
                   entry["is_param"] = each.trained;
                   internal::Json& meta = entry["tensor_meta"];
                   meta["requires_grad"] = each.trained;
                   meta["storage_offset"] = {{"as_int", each.offset}};
                   for (std::size_t k = 0; k < each.strides.size(); ++k) {
                     meta["strides"][k]["as_int"] = each.strides[k];
                   }
                 }
                 content = json.dump();
                 return true;
               });
  return error_for(path);
}

// 'first.weight' [4, 4] is the record weight_0, and the buffer 'seen' [4]
// changes in each call.
TEST(ExportedRefusalsTest, WeightsThatShareMemoryAndChange) {
  const auto error_of = [&](const std::string& other) {
    return "cannot run as a pipeline:\n  the weights 'first.weight' and '" +
           other +
           "' share memory in Python, and a change of one must be seen in the "
           "other; register only one of them, and take its part in forward()";
  };
  const Place frozen{"first.weight", "weight_0", {4, 1}, 0, false};
  const Place row{"seen", "weight_0", {1}, 4, false};
  const Place column{"seen", "weight_0", {4}, 2, false};
  EXPECT_EQ(error_with_places({frozen, row}), error_of("seen"));
  EXPECT_EQ(error_with_places({frozen, column}), error_of("seen"));
  // Training changes 'first.weight'.
  const Place bias{"first.bias", "weight_0", {4}, 3, false};
  EXPECT_EQ(error_with_places({bias}), error_of("first.bias"));
  EXPECT_EQ(error_with_places({frozen, bias}), "no error");
  // Two columns have no element in common.
  const Place elsewhere{"first.weight", "weight_2", {4, 1}, 0, true};
  EXPECT_EQ(error_with_places({elsewhere, column, bias}), "no error");
}

TEST(ExportedRefusalsTest, DamagedGraphs) {
  EXPECT_THAT(error_with("{\"as_tensor\": {\"name\": \"linear\"}}, \"kind\"",
                         "{\"as_tensor\": {\"name\": \"linea\"}}, \"kind\""),
              HasSubstr("the value 'linea' is read before it is computed; the "
                        "file is damaged"));
  EXPECT_EQ(error_with("\"range_constraints\"", "\"range_constraint\""),
            "an entry 'range_constraints' is missing in an object of 7 "
            "entries; the file is damaged");
  EXPECT_THAT(error_with("{\"graph_module\"", "{graph_module\""),
              HasSubstr("record 'models/model.json' is not JSON: "));
}

}  // namespace
}  // namespace gpipe
