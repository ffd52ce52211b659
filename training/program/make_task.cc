#include "training/program/make_task.h"

#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "gpipe/base/program.h"
#include "models/named.h"
#include "training/program/classification.h"
#include "training/program/language.h"
#include "training/program/model_source.h"
#include "training/program/segmentation.h"
#include "training/program/tensor_rows.h"

namespace gpipe::train_program {
namespace {

namespace fs = std::filesystem;

using models::DataKind;

const char* what_is(DataKind kind) {
  switch (kind) {
    case DataKind::kImages:
      return "a folder of labelled images (a folder per class, train/ and "
             "test/ with those, CIFAR-10's or MNIST's files)";
    case DataKind::kMasks:
      return "a folder with images/ and masks/";
    case DataKind::kText:
      return "a text file";
    case DataKind::kTensors:
      return "a file with named tensors";
  }
  return "";
}

std::string models_for(DataKind kind) {
  if (kind == DataKind::kTensors) return ".pt2 files";
  return "--model=" + absl::StrJoin(models::model_names(kind), ", ") +
         " and .pt2 files of such models";
}

}  // namespace

DataKind data_kind_at(const std::string& path) {
  const fs::path root(path);
  TORCH_CHECK_VALUE(fs::exists(root), "--data_dir=", path,
                    ": no such file or folder");
  if (!fs::is_directory(root)) {
    return has_named_tensors(path) ? DataKind::kTensors : DataKind::kText;
  }
  return fs::is_directory(root / "images") && fs::is_directory(root / "masks")
             ? DataKind::kMasks
             : DataKind::kImages;
}

std::unique_ptr<Task> make_task(const Options& options) {
  load_operators(options.operators);
  const auto here = options.data_dir.empty()
                        ? std::nullopt
                        : std::optional(data_kind_at(options.data_dir));
  auto source = std::make_shared<ModelSource>(
      options.model, exported_options(options),
      here == DataKind::kTensors ? FileUse::kNamedTensors : FileUse::kAnyData);
  const DataKind kind = source->kind();
  if (here) {
    TORCH_CHECK_VALUE(*here == kind, "--model=", options.model, " needs ",
                      what_is(kind), ", but --data_dir=", options.data_dir,
                      " is ", what_is(*here), ", which is for ",
                      models_for(*here));
  }
  TORCH_CHECK_VALUE(kind == DataKind::kText || options.bucket == 0,
                    "--bucket=", options.bucket,
                    " with --model=", options.model,
                    ": only a text has sequences, for --model=",
                    absl::StrJoin(models::model_names(DataKind::kText), ", "),
                    " and .pt2 files of such models; use --bucket=0");
  switch (kind) {
    case DataKind::kImages:
      return classification(options, std::move(source));
    case DataKind::kMasks:
      return segmentation(options, std::move(source));
    case DataKind::kText:
      return language(options, std::move(source));
    case DataKind::kTensors:
      return tensor_rows(options, std::move(source));
  }
  return nullptr;
}

}  // namespace gpipe::train_program
