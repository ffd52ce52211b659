#include "training/program/task.h"

#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "gpipe/base/program.h"
#include "models/named.h"
#include "training/data/random.h"
#include "training/program/tasks.h"

namespace gpipe::train_program {

// ---- The choice of a task

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
  std::error_code error;
  TORCH_CHECK_VALUE(
      fs::exists(root, error), "--data_dir=", path, ": ",
      error ? "cannot be read: " + error.message() : "no such file or folder");
  if (!fs::is_directory(root, error)) {
    return has_named_tensors(path) ? DataKind::kTensors : DataKind::kText;
  }
  return fs::is_directory(root / "images", error) &&
                 fs::is_directory(root / "masks", error)
             ? DataKind::kMasks
             : DataKind::kImages;
}

std::unique_ptr<Task> make_task(const Options& options) {
  load_operators(options.operators);
  std::optional<DataKind> here;
  if (!options.data_dir.empty()) here = data_kind_at(options.data_dir);
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

// ---- Mini-batches

int64_t held_out_of(int64_t items, double part, const std::string& name) {
  TORCH_CHECK_VALUE(part > 0 && part < 1, "--held_out=", part,
                    ": must be above 0 and below 1");
  const auto count =
      static_cast<int64_t>(std::llround(part * static_cast<double>(items)));
  TORCH_CHECK_VALUE(count > 0 && count < items, "--held_out=", part, " of ",
                    items, " ", name, " is ", count,
                    "; training and testing each need at least one");
  return count;
}

int64_t limited(int64_t batches, const Options& options) {
  const int64_t limit = options.limit;
  if (limit == 0) return batches;
  TORCH_CHECK_VALUE(limit >= options.batch, "--limit=", limit,
                    " is less than a mini-batch, which has ", options.batch,
                    ": use a larger limit, or smaller mini-batches");
  return std::min(batches, limit / options.batch);
}

Epochs::Epochs(int64_t items, const Options& options)
    : items_(items), batch_(options.batch), seed_(options.seed) {
  check_at_least("batch", batch_, 1);
  TORCH_CHECK_VALUE(items >= batch_, "--batch=", batch_, " is more than the ",
                    items, " items of the training data");
  batches_ = limited(items / batch_, options);
}

Epochs::Items Epochs::at(int64_t index, Rows rows) {
  const int64_t epoch = index / batches();
  const uint64_t seed = data::mix_seed(seed_, 2, epoch);
  if (epoch != epoch_) {
    order_ = data::permutation(items_, seed);
    epoch_ = epoch;
  }
  const auto first = order_.begin() + index % batches() * batch_;
  return {seed, {first + rows.begin, first + rows.end}};
}

}  // namespace gpipe::train_program
