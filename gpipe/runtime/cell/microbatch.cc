#include "gpipe/runtime/cell/microbatch.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

#include "gpipe/schedule/microbatches.h"

namespace gpipe::internal {
namespace {

// Returns "the input" or, for example, "element 1 of the input".
std::string element(const Value& input, std::size_t k) {
  if (input.kind() == Value::Kind::kTensor) return "the input";
  return "element " + std::to_string(k) + " of the input";
}

}  // namespace

void check_rows(const Value& input) {
  const auto& tensors = input.tensors();
  const at::Tensor* first = nullptr;
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const at::Tensor& tensor = tensors[k];
    if (!tensor.defined()) {
      TORCH_CHECK_TYPE(input.kind() != Value::Kind::kTensor,
                       "the input is an undefined tensor");
      continue;
    }
    TORCH_CHECK_VALUE(tensor.dim() > 0, element(input, k),
                      " has no dimension 0 to split into micro-batches (a "
                      "scalar); pass at least a 1-dimensional tensor");
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
      TORCH_CHECK_VALUE(false,
                        "the tensors of the input differ in size along "
                        "dimension 0, which is split into micro-batches "
                        "(sizes:",
                        sizes.str(), ")");
    }
  }
  TORCH_CHECK_VALUE(first != nullptr,
                    "the input holds no defined tensor, so that there is "
                    "nothing to split into micro-batches (it is ",
                    input.describe(), ")");
}

void check_device(const Value& input, c10::ArrayRef<c10::Device> devices,
                  const char* found_by) {
  for (std::size_t k = 0; k < input.tensors().size(); ++k) {
    const at::Tensor& tensor = input.tensors()[k];
    if (!tensor.defined()) continue;
    TORCH_CHECK_VALUE(std::find(devices.begin(), devices.end(),
                                tensor.device()) != devices.end(),
                      element(input, k), " is on ", tensor.device(),
                      " but the first partition is on ", devices.front(),
                      "; move it there first (", found_by, ")");
  }
}

void check_input(const Value& input, const c10::Device& device) {
  check_rows(input);
  check_device(input, device, "devices()[0]");
}

int64_t rows_of(const Value& value) {
  for (const at::Tensor& tensor : value.tensors()) {
    if (tensor.defined() && tensor.dim() > 0) return tensor.size(0);
  }
  return 0;
}

int64_t count_microbatches(const Value& input, int64_t chunks) {
  check_rows(input);
  const int64_t rows = rows_of(input);
  return rows > 0 ? num_microbatches(rows, chunks) : 1;
}

std::vector<Value> scatter(const Value& input, int64_t chunks) {
  std::vector<Value> pieces;
  const std::size_t width = input.tensors().size();
  for (std::size_t k = 0; k < width; ++k) {
    if (!input.tensors()[k].defined()) continue;
    const auto split = at::chunk(input.tensors()[k], chunks, /*dim=*/0);
    if (pieces.empty()) {
      pieces.assign(split.size(),
                    Value(input.kind(), std::vector<at::Tensor>(width)));
    }
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

}  // namespace gpipe::internal
