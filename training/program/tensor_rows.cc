// The task of a model from a file, with any inputs.
#include <ATen/Functions.h>
#include <absl/strings/str_join.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "models/exported/exported.h"
#include "models/weights/torch_file.h"
#include "training/data/checksum.h"
#include "training/data/random.h"
#include "training/program/tasks.h"
#include "training/program/weights.h"

namespace gpipe::train_program {
namespace {

namespace F = torch::nn::functional;

constexpr char kTarget[] = "target";
// The index that cross_entropy() ignores.
constexpr int64_t kNoIndex = -100;

// Throws c10::ValueError if `tensor` cannot be the input `wanted`.
void check_input(const ExportedTensor& wanted, const at::Tensor& tensor) {
  const auto dimensions = static_cast<int64_t>(wanted.sizes.size());
  bool fits = tensor.dim() == dimensions &&
              tensor.scalar_type() == wanted.dtype.value_or(at::kFloat);
  for (int64_t k = 0; fits && k < dimensions; ++k) {
    fits = !wanted.sizes[k] || *wanted.sizes[k] == tensor.size(k);
  }
  TORCH_CHECK_VALUE(fits, "the tensor '", wanted.name, "' is ",
                    shape_text(tensor), ", but the model takes ", wanted.shape);
}

// Throws c10::ValueError if `target` is no target of the output. Returns
// whether it has indices.
bool check_target(const ExportedTensor& output, const at::Tensor& target) {
  const bool indices = target.scalar_type() == at::kLong;
  const auto dimensions = static_cast<int64_t>(output.sizes.size());
  bool fits = (indices || target.is_floating_point()) && target.dim() > 0 &&
              target.dim() == dimensions - (indices ? 1 : 0);
  for (int64_t k = 1; fits && k < target.dim(); ++k) {
    fits = !output.sizes[k] || *output.sizes[k] == target.size(k);
  }
  TORCH_CHECK_VALUE(
      fits, "the tensor 'target' is ", shape_text(target),
      ", but the model returns ", output.shape,
      "; give indices into its last dimension (Long, one dimension fewer), or "
      "values (floating point, the same sizes)");
  if (!indices || target.numel() == 0) return indices;
  const at::Tensor used = target.masked_select(target.ne(kNoIndex));
  TORCH_CHECK_VALUE(used.numel() > 0, "all targets are ", kNoIndex,
                    ", which means none");
  const auto least = used.min().item<int64_t>();
  const auto most = used.max().item<int64_t>();
  const auto& classes = output.sizes.back();
  TORCH_CHECK_VALUE(
      least >= 0 && most < classes.value_or(most + 1), "the targets are ",
      least, " to ", most, ", but the model returns ", output.shape,
      "; they must be 0 to the last dimension minus 1, or ", kNoIndex);
  return indices;
}

// The rows of a file.
struct TensorFile {
  std::vector<at::Tensor> inputs;
  at::Tensor target;
  bool indices = false;  // whether the target has indices

  int64_t rows() const { return target.size(0); }

  // Returns the rows with a target, shuffled by `seed`. A mini-batch without a
  // target has no mean loss, so the others are not used.
  std::vector<int64_t> rows_with_target(uint64_t seed) const {
    at::Tensor found = at::arange(rows());
    if (indices && rows() > 0) {
      found = found.masked_select(
          target.ne(kNoIndex).reshape({rows(), -1}).any(/*dim=*/1));
    }
    const auto* const row = found.const_data_ptr<int64_t>();
    std::vector<int64_t> order = data::permutation(found.numel(), seed);
    for (int64_t& each : order) each = row[each];
    return order;
  }
};

TensorFile read(const std::string& path, const ExportedSignature& signature) {
  const StateDict dict = read_named_tensors("--data_dir", path);
  const auto find = [&](const std::string& name) {
    const at::Tensor* found = dict.find(name);
    std::vector<std::string> needed;
    for (const auto& each : signature.inputs) needed.push_back(each.name);
    TORCH_CHECK_VALUE(found, "--data_dir=", path, " has no tensor '", name,
                      "'; it has ", absl::StrJoin(dict.keys(), ", "),
                      ", but the model needs ", absl::StrJoin(needed, ", "),
                      " and ", kTarget);
    return *found;
  };
  TensorFile file;
  file.target = find(kTarget);
  for (const ExportedTensor& each : signature.inputs) {
    file.inputs.push_back(find(each.name));
    check_input(each, file.inputs.back());
  }
  file.indices = check_target(signature.outputs[0], file.target);
  for (std::size_t k = 0; k < file.inputs.size(); ++k) {
    TORCH_CHECK_VALUE(file.inputs[k].size(0) == file.rows(),
                      "--data_dir=", path, " has ", file.inputs[k].size(0),
                      " rows of '", signature.inputs[k].name, "', but ",
                      file.rows(), " of '", kTarget, "'");
  }
  return file;
}

// ---- Targets that are values

// check_target() does not know the dynamic dimensions. mse_loss() would
// broadcast them.
void check_same_sizes(const at::Tensor& output, const at::Tensor& target) {
  TORCH_CHECK_VALUE(output.sizes() == target.sizes(), "rows of '", kTarget,
                    "' are ", target.sizes(), ", but the model returns ",
                    output.sizes(), " for them; give targets of these sizes");
}

WeightedLoss loss_of_values(const at::Tensor& output,
                            const at::Tensor& target) {
  check_same_sizes(output, target);
  const at::Tensor values = in_full_precision(output);
  WeightedLoss loss;
  loss.sum =
      F::mse_loss(values, target.to(values.device(), values.scalar_type()),
                  F::MSELossFuncOptions().reduction(torch::kSum));
  loss.weight = at::scalar_tensor(target.numel(), loss.sum.options());
  return loss;
}

Score score_of_values(const at::Tensor& output, const at::Tensor& target) {
  check_same_sizes(output, target);
  Score score;
  score.items = static_cast<double>(target.numel());
  score.loss = (output.to(at::kDouble) - target.to(at::kDouble))
                   .square()
                   .sum()
                   .item<double>();
  return score;
}

Measures measures_of(const TensorFile& file) {
  if (file.indices) {
    return {loss_of_labels, score_of_labels, "accuracy", accuracy};
  }
  return {loss_of_values, score_of_values, "rms error", [](const Score& score) {
            return std::sqrt(score.loss / score.items);
          }};
}

class TensorRows : public ModelTask {
 public:
  TensorRows(Options fitted, std::shared_ptr<ModelSource> source,
             TensorFile file)
      : ModelTask(std::move(fitted), std::move(source), measures_of(file)),
        file_(std::move(file)),
        order_(file_.rows_with_target(options().seed)),
        held_out_(held_out_of(num_rows(), options().held_out, rows_text())),
        epochs_(num_rows() - held_out_, options()) {}

  std::string data() const override {
    std::string text = std::to_string(num_rows() - held_out_) +
                       " rows for training and " + std::to_string(held_out_) +
                       " for testing, ";
    if (const int64_t unused = file_.rows() - num_rows(); unused > 0) {
      text += std::to_string(unused) + " not used (all their targets are " +
              std::to_string(kNoIndex) + "), ";
    }
    text += "of ";
    const auto& inputs = source().file()->signature().inputs;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      text += inputs[k].name + " " + shape_text(file_.inputs[k]) + ", ";
    }
    return text + kTarget + " " + shape_text(file_.target);
  }

  uint32_t checksum() const override {
    uint32_t sum = data::checksum_of(file_.target);
    for (const at::Tensor& each : file_.inputs) {
      sum = data::checksum_of(each, sum);
    }
    return sum;
  }

  std::string rows_name() const override { return "rows"; }

  int64_t train_batches() const override { return epochs_.batches(); }
  int64_t test_batches() const override { return batches_of(held_out_); }

  Sample train_batch(int64_t index, Rows rows) override {
    std::vector<int64_t> places;
    for (const int64_t item : epochs_.at(index, rows).indices) {
      places.push_back(order_[held_out_ + item]);
    }
    return sample_of(places);
  }

  Sample test_batch(int64_t index) override {
    const Rows rows = rows_of(index, held_out_);
    return sample_of({order_.begin() + rows.begin, order_.begin() + rows.end});
  }

 private:
  int64_t num_rows() const { return static_cast<int64_t>(order_.size()); }
  std::string rows_text() const {
    return num_rows() == file_.rows() ? "rows" : "rows with a target";
  }

  Sample sample_of(const std::vector<int64_t>& places) const {
    const at::Tensor index = at::tensor(places);
    Sample sample{file_.inputs[0].index_select(0, index),
                  file_.target.index_select(0, index),
                  {}};
    for (std::size_t k = 1; k < file_.inputs.size(); ++k) {
      sample.further.push_back(file_.inputs[k].index_select(0, index));
    }
    return sample;
  }

  const TensorFile file_;
  const std::vector<int64_t> order_;  // the rows that are used
  const int64_t held_out_;  // number of test rows, the first in `order_`
  Epochs epochs_;
};

}  // namespace

bool has_named_tensors(const std::string& path) {
  return path.ends_with(".safetensors") || internal::is_torch_file(path);
}

std::unique_ptr<Task> tensor_rows(const Options& options,
                                  std::shared_ptr<ModelSource> source) {
  Options fitted = source->fitted(options);
  TensorFile file = read(options.data_dir, source->file()->signature());
  return std::make_unique<TensorRows>(std::move(fitted), std::move(source),
                                      std::move(file));
}

}  // namespace gpipe::train_program
