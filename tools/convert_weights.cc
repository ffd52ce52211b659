// Converts weights between PyTorch's files (.pt, .pth), .safetensors, and
// folders of transformers. Can also create initial weights, check that weights
// fit a model, and list a file.
//
//   ./bazelw run //tools:convert_weights -- --in=/a/w.pt --out=/a/w.safetensors
//   ./bazelw run //tools:convert_weights -- --in=/a/w.pt --entry=ema --list
//   ./bazelw run //tools:convert_weights -- --in=/a/llama --out=/a/small/
//       --shard_size=1000000000 --weights_dtype=bfloat16
//   ./bazelw run //tools:convert_weights -- --model=resnet101
//       --in=/a/resnet101.pth --in_names=torchvision --out=/a/ours.safetensors
//   ./bazelw run //tools:convert_weights -- --in=/a/model.safetensors
//       --merge_lora=/a/adapter --out=/a/merged.safetensors
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <gflags/gflags.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "gpipe/base/program.h"
#include "gpipe/base/run_main.h"
#include "models/lora.h"
#include "models/named.h"
#include "models/weights/formats.h"
#include "models/weights/hugging_face.h"
#include "models/weights/names.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "models/weights/torch_file.h"

DEFINE_string(in, "",
              "The file to read, .pt, .pth or .safetensors, or a folder of "
              "transformers.");
DEFINE_string(entry, "",
              "The entry of a .pt or .pth file that has the weights, for "
              "example ema, state/model or nets/0. '': a usual one, such as "
              "state_dict or model. An error lists the entries.");
DEFINE_string(out, "",
              "The file to write, .pt, .pth or .safetensors, or a folder: one "
              "that exists, or a path that ends in /.");
DEFINE_int64(shard_size, 5'000'000'000,
             "The largest file that is written into a folder, in bytes.");
DEFINE_string(weights_dtype, "",
              "The dtype of the floating-point tensors of --out, such as "
              "bfloat16. '': as they are.");
DEFINE_string(
    merge_lora, "",
    "A folder of Python's PEFT, or RUN_DIR/adapter of examples:train. "
    "Its adapters are added to the weights of --in, which have the "
    "names of Hugging Face.");
DEFINE_bool(list, false, "Print names, dtypes and shapes.");
namespace models = gpipe::models;

const std::string kModelHelp =
    absl::StrJoin(models::model_names(), ", ") +
    ". The tensors of --in must fit this model. Without --in, its initial "
    "weights are used.";
DEFINE_string(model, "", kModelHelp.c_str());
DEFINE_string(in_names, "",
              "torchvision: --in has torchvision's names (for ResNets).");
DEFINE_string(out_names, "", "torchvision: --out gets torchvision's names.");
DEFINE_uint64(seed, 0, "The seed for initial weights.");
DEFINE_int64(classes, 1000,
             "Number of classes of a model for labelled images.");
DEFINE_int64(layers, 6, "Number of layers of amoebanetd and transformer.");
DEFINE_int64(width, 64,
             "Filters of amoebanetd, base channels of unet, width of "
             "transformer. The number of heads of transformer is a quarter of "
             "the width.");
DEFINE_int64(depth, 5, "Number of levels of unet.");
DEFINE_int64(convolutions, 2, "Convolutions per level of unet.");
DEFINE_int64(vocabulary, 1000, "Vocabulary size of transformer.");
DEFINE_bool(tied_embeddings, false, "Tie the embeddings of transformer.");

torch::nn::Sequential make_model() {
  models::ModelOptions options;
  options.classes = FLAGS_classes;
  options.depth = FLAGS_depth;
  options.convolutions = FLAGS_convolutions;
  options.layers = FLAGS_layers;
  options.width = FLAGS_width;
  options.heads = FLAGS_width / 4;
  options.vocabulary = FLAGS_vocabulary;
  options.tied_embeddings = FLAGS_tied_embeddings;
  return models::named_model(FLAGS_model, options);
}

// Returns the table from gpipe's names to those in the flag, or an empty one if
// the flag has no value.
gpipe::NameTable table(const char* flag, const std::string& value) {
  if (value.empty()) return {};
  TORCH_CHECK_VALUE(value == "torchvision", flag, " is '", value,
                    "', but must be torchvision");
  const auto names = models::torchvision_names(FLAGS_model);
  TORCH_CHECK_VALUE(!names.empty(), flag,
                    " needs a --model that torchvision has, such as resnet50");
  return names;
}

enum class Format { kTorch, kSafetensors, kFolder };

Format format_of(const std::string& path) {
  std::error_code error;
  if (path.ends_with("/") || std::filesystem::is_directory(path, error)) {
    return Format::kFolder;
  }
  if (gpipe::internal::is_torch_file(path)) return Format::kTorch;
  TORCH_CHECK_VALUE(path.ends_with(".safetensors"), path,
                    ": should end in .pt, .pth or .safetensors, or in / for a "
                    "folder");
  return Format::kSafetensors;
}

gpipe::Safetensors read(const std::string& path) {
  if (format_of(path) == Format::kTorch) {
    return {gpipe::read_torch_file(path, FLAGS_entry), {}};
  }
  TORCH_CHECK_VALUE(FLAGS_entry.empty(), "--entry=", FLAGS_entry,
                    ": only .pt and .pth files have entries");
  if (format_of(path) == Format::kFolder) {
    return {gpipe::read_hugging_face(path), {}};
  }
  return gpipe::read_safetensors(path);
}

void write(const std::string& path, const gpipe::Safetensors& file) {
  switch (format_of(path)) {
    case Format::kFolder:
      gpipe::save_hugging_face(path, file.tensors, FLAGS_shard_size);
      break;
    case Format::kSafetensors:
      gpipe::write_safetensors(path, file.tensors, file.metadata);
      break;
    case Format::kTorch:
      gpipe::write_torch_file(path, file.tensors);
      break;
  }
}

// Returns the dtype of --weights_dtype, or nothing if it is empty.
std::optional<torch::Dtype> wanted_dtype() {
  if (FLAGS_weights_dtype.empty()) return std::nullopt;
  using gpipe::internal::DtypeNames;
  const auto* found =
      gpipe::internal::find_dtype(&DtypeNames::python, FLAGS_weights_dtype);
  TORCH_CHECK_VALUE(
      found && c10::isFloatingType(found->dtype) && found->packed == 1,
      "--weights_dtype=", FLAGS_weights_dtype,
      ": must be a floating-point dtype, such as float32 or "
      "bfloat16");
  return found->dtype;
}

// Returns the tensors with floating-point ones converted. Tensors that share
// their memory share it again. Throws c10::ValueError if a value is beyond the
// range of `dtype`.
gpipe::StateDict converted(const gpipe::StateDict& tensors,
                           torch::Dtype dtype) {
  gpipe::StateDict result;
  std::map<std::tuple<const void*, torch::Dtype, std::vector<int64_t>,
                      std::vector<int64_t>, bool>,
           at::Tensor>
      known;
  for (const auto& item : tensors) {
    const at::Tensor& from = item.value();
    if (!from.is_floating_point()) {
      result.insert(item.key(), from);
      continue;
    }
    at::Tensor& to =
        known[{from.const_data_ptr(), from.scalar_type(), from.sizes().vec(),
               from.strides().vec(), from.is_neg()}];
    if (!to.defined()) {
      to = gpipe::internal::convert_in_range(item.key(), from, dtype);
    }
    result.insert(item.key(), to);
  }
  return result;
}

void print(const gpipe::Safetensors& file) {
  int64_t elements = 0;
  std::size_t bytes = 0;
  for (const auto& [name, value] : file.metadata) {
    std::cout << "# " << name << ": " << value << "\n";
  }
  for (const auto& item : file.tensors) {
    const auto& tensor = item.value();
    std::cout << item.key() << "  " << tensor.scalar_type() << "  "
              << tensor.sizes() << "\n";
    elements += tensor.numel();
    bytes += tensor.nbytes();
  }
  std::cout << file.tensors.size() << " tensors, " << elements << " elements, "
            << bytes << " bytes\n";
}

void convert() {
  TORCH_CHECK_VALUE(!FLAGS_in.empty() || !FLAGS_model.empty(),
                    "give a file to read with --in, or a --model");
  TORCH_CHECK_VALUE(!FLAGS_out.empty() || FLAGS_list,
                    "give a file to write with --out, or --list");
  if (FLAGS_in.empty()) {
    gpipe::check_unused({"entry", "in_names"}, "has no meaning without --in");
  } else {
    gpipe::check_unused({"seed"}, "has no meaning with --in");
  }
  if (FLAGS_model.empty()) {
    gpipe::check_unused({"classes", "layers", "width", "depth", "convolutions",
                         "vocabulary", "tied_embeddings"},
                        "has no meaning without --model");
  } else {
    const std::string why = "has no meaning with --model=" + FLAGS_model;
    using Options = models::ModelOptions;
    for (const auto& [flag, option] :
         std::vector<std::pair<const char*, int64_t Options::*>>{
             {"layers", &Options::layers},
             {"width", &Options::width},
             {"depth", &Options::depth},
             {"convolutions", &Options::convolutions}}) {
      if (!models::has_size(FLAGS_model, option)) {
        gpipe::check_unused({flag}, why);
      }
    }
    const models::DataKind kind = models::data_kind_of(FLAGS_model);
    if (kind != models::DataKind::kImages) {
      gpipe::check_unused({"classes"}, why);
    }
    if (kind != models::DataKind::kText) {
      gpipe::check_unused({"vocabulary", "tied_embeddings"}, why);
    }
  }
  // Throws before long work.
  if (FLAGS_out.empty()) {
    gpipe::check_unused({"shard_size"}, "has no meaning without --out");
  } else if (format_of(FLAGS_out) != Format::kFolder) {
    gpipe::check_unused({"shard_size"}, "is for a folder in --out");
  }
  TORCH_CHECK_VALUE(FLAGS_shard_size >= 1, "--shard_size=", FLAGS_shard_size,
                    ": must be at least 1");
  TORCH_CHECK_VALUE(FLAGS_model != "transformer" || FLAGS_width >= 4,
                    "--width=", FLAGS_width,
                    ": must be at least 4 for transformer, whose number of "
                    "heads is a quarter of it");
  const std::optional<torch::Dtype> dtype = wanted_dtype();
  const gpipe::NameTable in_names = table("--in_names", FLAGS_in_names);
  const gpipe::NameTable out_names = table("--out_names", FLAGS_out_names);

  gpipe::Safetensors file;
  if (!FLAGS_in.empty()) {
    file = read(FLAGS_in);
    file.tensors = gpipe::rename(file.tensors, gpipe::inverse(in_names));
  }
  std::optional<torch::nn::Sequential> model;
  if (!FLAGS_model.empty()) {
    torch::manual_seed(FLAGS_seed);
    model = make_model();
    if (!FLAGS_in.empty()) gpipe::load_state_dict(**model, file.tensors);
    file.tensors = gpipe::state_dict(**model);
  }
  if (!FLAGS_merge_lora.empty()) {
    gpipe::merge_lora(FLAGS_merge_lora, file.tensors);
  }
  file.tensors = gpipe::rename(file.tensors, out_names);
  if (dtype) file.tensors = converted(file.tensors, *dtype);
  if (FLAGS_list) print(file);
  if (!FLAGS_out.empty()) write(FLAGS_out, file);
}

int main(int argc, char** argv) {
  return gpipe::run_main(argc, argv, "convert_weights",
                         "converts weights between files",
                         "tools/convert_weights", convert, /*failed=*/1);
}
