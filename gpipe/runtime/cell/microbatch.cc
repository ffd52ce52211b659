#include "gpipe/runtime/cell/microbatch.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "gpipe/schedule/microbatches.h"

namespace gpipe::internal {
namespace {

// Returns "the input" or, for example, "element 1 of the input".
std::string element(const Value& input, std::size_t k) {
  if (input.kind() == Value::Kind::kTensor) return "the input";
  return "element " + std::to_string(k) + " of the input";
}

void check_rows_of_whole(const Value& input, const Unsplit& unsplit) {
  const auto& tensors = input.tensors();
  for (const int64_t index : unsplit) {
    TORCH_CHECK_VALUE(input.kind() != Value::Kind::kTensor &&
                          index < static_cast<int64_t>(tensors.size()),
                      "the option unsplit names element ", index,
                      " of the input, but the input is ", input.describe(),
                      "; elements of a vector or a tuple are counted from 0");
  }
  const at::Tensor* first = nullptr;
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const at::Tensor& tensor = tensors[k];
    if (!tensor.defined()) {
      TORCH_CHECK_TYPE(input.kind() != Value::Kind::kTensor,
                       "the input is an undefined tensor");
      continue;
    }
    if (is_unsplit(unsplit, k)) continue;
    TORCH_CHECK_VALUE(
        tensor.dim() > 0, element(input, k),
        " has no dimension 0 to split into micro-batches (a scalar); pass at "
        "least a 1-dimensional tensor",
        input.kind() == Value::Kind::kTensor
            ? ""
            : ", or name the element in the option unsplit");
    if (first == nullptr) first = &tensor;
    if (tensor.size(0) != first->size(0)) {
      std::ostringstream sizes;
      for (const at::Tensor& each : tensors) {
        if (!each.defined()) {
          sizes << " undefined";
        } else if (each.dim() == 0) {
          sizes << " scalar";
        } else {
          sizes << " " << each.size(0);
        }
      }
      TORCH_CHECK_VALUE(
          false,
          "the tensors of the input differ in size along dimension 0, which "
          "is split into micro-batches (sizes:",
          sizes.str(),
          "); name an element that every micro-batch needs whole in the "
          "option unsplit. If it counts rows or positions of the mini-batch, "
          "or has its rows in another dimension, split the input yourself and "
          "pass Microbatches");
    }
  }
  TORCH_CHECK_VALUE(first != nullptr, "the input holds no defined tensor",
                    unsplit.empty() ? "" : " beside those of unsplit",
                    ", so that there is nothing to split into micro-batches "
                    "(it is ",
                    input.describe(), ")");
}

}  // namespace

bool is_unsplit(const Unsplit& unsplit, std::size_t k) {
  return std::ranges::find(unsplit, static_cast<int64_t>(k)) != unsplit.end();
}

void check_unsplit(const Unsplit& unsplit) {
  for (std::size_t k = 0; k < unsplit.size(); ++k) {
    const bool twice = std::find(unsplit.begin(), unsplit.begin() + k,
                                 unsplit[k]) != unsplit.begin() + k;
    TORCH_CHECK_VALUE(unsplit[k] >= 0 && !twice,
                      "the option unsplit must name elements of the input, "
                      "each once, counted from 0 (unsplit: ",
                      c10::IntArrayRef(unsplit), ")");
  }
}

void check_rows(const Batch& input, const Unsplit& unsplit) {
  if (!input.split()) return check_rows_of_whole(input.whole(), unsplit);
  TORCH_CHECK_VALUE(input.parts() > 0,
                    "Microbatches::parts is empty; give at least one part");
  for (const Value& part : input.values()) {
    TORCH_CHECK_TYPE(
        part.kind() != Value::Kind::kTensor || part.tensors().front().defined(),
        "part ", &part - input.values().data(),
        " of the input is an undefined tensor");
  }
}

void check_device(const Batch& input, c10::ArrayRef<c10::Device> devices,
                  const char* found_by) {
  for (const Value& value : input.values()) {
    for (std::size_t k = 0; k < value.tensors().size(); ++k) {
      const at::Tensor& tensor = value.tensors()[k];
      if (!tensor.defined()) continue;
      TORCH_CHECK_VALUE(
          std::ranges::find(devices, tensor.device()) != devices.end(),
          element(value, k), " is on ", tensor.device(),
          " but the first partition is on ", devices.front(),
          "; move it there first (", found_by, ")");
    }
  }
}

void check_input(const Batch& input, const c10::Device& device,
                 const Unsplit& unsplit) {
  check_rows(input, unsplit);
  check_device(input, device, "devices()[0]");
}

int64_t rows_of(const Value& value, const Unsplit& unsplit) {
  for (std::size_t k = 0; k < value.tensors().size(); ++k) {
    const at::Tensor& tensor = value.tensors()[k];
    if (!tensor.defined() || tensor.dim() == 0) continue;
    if (!is_unsplit(unsplit, k)) return tensor.size(0);
  }
  return 0;
}

bool has_row_dimension(const Value& value) {
  return std::ranges::any_of(value.tensors(), [](const at::Tensor& each) {
    return each.defined() && each.dim() > 0;
  });
}

int64_t count_microbatches(const Batch& input, int64_t chunks,
                           const Unsplit& unsplit) {
  check_rows(input, unsplit);
  if (input.split()) return input.parts();
  const int64_t rows = rows_of(input.whole(), unsplit);
  return rows > 0 ? num_microbatches(rows, chunks) : 1;
}

std::vector<Value> scatter(const Value& input, const std::vector<int64_t>& rows,
                           const Unsplit& unsplit) {
  std::vector<Value> pieces(rows.size(), input);
  if (rows.size() == 1) return pieces;
  for (std::size_t k = 0; k < input.tensors().size(); ++k) {
    if (!input.tensors()[k].defined() || is_unsplit(unsplit, k)) continue;
    TORCH_CHECK_VALUE(input.tensors()[k].layout() == at::kStrided,
                      element(input, k), " is ", input.tensors()[k].layout(),
                      ", which LibTorch does not split into micro-batches; "
                      "split it yourself and pass Microbatches, or use one "
                      "micro-batch");
    const auto split = input.tensors()[k].split_with_sizes(rows, /*dim=*/0);
    for (std::size_t i = 0; i < split.size(); ++i) {
      pieces[i].tensors()[k] = split[i];
    }
  }
  return pieces;
}

Value gather(const std::vector<Value>& pieces) {
  const Value& first = pieces.front();
  if (pieces.size() == 1) return first;
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    TORCH_CHECK_VALUE(pieces[i].kind() == first.kind() &&
                          pieces[i].tensors().size() == first.tensors().size(),
                      "the outputs of the micro-batches do not fit together: "
                      "micro-batch 0 gave ",
                      first.describe(), ", micro-batch ", i, " gave ",
                      pieces[i].describe());
  }
  std::vector<at::Tensor> tensors;
  for (std::size_t k = 0; k < first.tensors().size(); ++k) {
    const at::Tensor& head = first.tensors()[k];
    std::vector<at::Tensor> column;
    column.reserve(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const at::Tensor& tensor = pieces[i].tensors()[k];
      TORCH_CHECK_VALUE(tensor.defined() == head.defined(), "element ", k,
                        " of the output is undefined in some micro-batches "
                        "only (such as micro-batch ",
                        tensor.defined() ? 0 : i, ")");
      if (!head.defined()) continue;
      TORCH_CHECK_VALUE(tensor.dim() > 0, "element ", k,
                        " of the output of "
                        "micro-batch ",
                        i,
                        " is a scalar, which cannot be "
                        "concatenated along dimension 0; compute a mean or a "
                        "loss outside of the pipeline, or keep a dimension");
      TORCH_CHECK_VALUE(tensor.dim() == head.dim() &&
                            tensor.sizes().slice(1) == head.sizes().slice(1),
                        "element ", k, " of the output has sizes ",
                        head.sizes(), " in micro-batch 0 but ", tensor.sizes(),
                        " in micro-batch ", i,
                        "; they may differ along "
                        "dimension 0 only");
      column.push_back(tensor);
    }
    tensors.push_back(head.defined() ? at::cat(column, 0) : at::Tensor());
  }
  return Value(first.kind(), std::move(tensors));
}

namespace {

std::string count_of_rows(int64_t rows) {
  return std::to_string(rows) + (rows == 1 ? " row" : " rows");
}

}  // namespace

std::string describe_other_rows(const std::vector<Value>& outputs,
                                const std::vector<int64_t>& rows) {
  if (outputs.size() < 2) return "";
  const Value& first = outputs.front();
  for (std::size_t k = 0; k < first.tensors().size(); ++k) {
    std::optional<int64_t> multiple;  // of the first rows that there are
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto& tensors = outputs[i].tensors();
      // gather() refuses outputs that do not fit together.
      if (k >= tensors.size() || !tensors[k].defined() ||
          tensors[k].dim() == 0) {
        break;
      }
      const int64_t found = tensors[k].size(0);
      if (!multiple && rows[i] > 0) multiple = found / rows[i];
      const bool fits = rows[i] == 0
                            ? found == 0
                            : *multiple > 0 && found == *multiple * rows[i];
      if (fits) continue;
      const std::string element =
          first.kind() == Value::Kind::kTensor
              ? "the output"
              : c10::str("element ", k, " of the output");
      return c10::str(
          element, " of micro-batch ", i, " (of ", outputs.size(), ") has ",
          count_of_rows(found), ", but the input of that micro-batch has ",
          count_of_rows(rows[i]),
          ". Outputs are concatenated: a layer that reduces over rows, such as "
          "mean(0), gives a result for each micro-batch, and not one for the "
          "mini-batch. Reduce after forward(), or use one micro-batch. If each "
          "output row depends on rows of its own micro-batch alone, ignore "
          "this warning");
    }
  }
  return "";
}

void warn_of_other_rows(const std::vector<Value>& outputs,
                        const std::vector<int64_t>& rows) {
  const std::string text = describe_other_rows(outputs, rows);
  if (text.empty()) return;
  TORCH_WARN_ONCE(text);
}

}  // namespace gpipe::internal
