#include "train_program/make_task.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <utility>

#include "train_program/classification.h"
#include "train_program/language.h"
#include "train_program/segmentation.h"

namespace gpipe::trainer {
namespace {

namespace fs = std::filesystem;

const std::vector<std::pair<std::string, DataKind>>& models() {
  static const std::vector<std::pair<std::string, DataKind>> all{
      {"resnet50", DataKind::kImages},   {"resnet101", DataKind::kImages},
      {"amoebanetd", DataKind::kImages}, {"unet", DataKind::kMasks},
      {"transformer", DataKind::kText},
  };
  return all;
}

const char* what_is(DataKind kind) {
  switch (kind) {
    case DataKind::kImages:
      return "a folder of labelled images (a folder per class, train/ and "
             "test/ with those, CIFAR-10's or MNIST's files)";
    case DataKind::kMasks:
      return "a folder with images/ and masks/";
    case DataKind::kText:
      return "a text file";
  }
  return "";
}

std::string models_for(DataKind kind) {
  std::string names;
  for (const auto& [name, of] : models()) {
    if (of == kind) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& model : models()) names.push_back(model.first);
  return names;
}

DataKind data_kind_of_model(const std::string& model) {
  std::string names;
  for (const auto& [name, kind] : models()) {
    if (name == model) return kind;
    names += (names.empty() ? "" : ", ") + name;
  }
  TORCH_CHECK_VALUE(false, "--model=", model, ": must be one of ", names);
}

DataKind data_kind_at(const std::string& path) {
  const fs::path root(path);
  TORCH_CHECK_VALUE(fs::exists(root), "--data_dir=", path,
                    ": no such file or folder");
  if (!fs::is_directory(root)) return DataKind::kText;
  return fs::is_directory(root / "images") && fs::is_directory(root / "masks")
             ? DataKind::kMasks
             : DataKind::kImages;
}

std::unique_ptr<Task> make_task(const TaskOptions& options) {
  const DataKind kind = data_kind_of_model(options.model);
  if (!options.data.empty()) {
    const DataKind here = data_kind_at(options.data);
    TORCH_CHECK_VALUE(here == kind, "--model=", options.model, " needs ",
                      what_is(kind), ", but --data_dir=", options.data, " is ",
                      what_is(here),
                      ", which is for --model=", models_for(here));
  }
  switch (kind) {
    case DataKind::kImages:
      return classification(options);
    case DataKind::kMasks:
      return segmentation(options);
    case DataKind::kText:
      return language(options);
  }
  return nullptr;
}

}  // namespace gpipe::trainer
