#include "training/program/token_inputs.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

namespace gpipe::train_program {
namespace {

std::string list_of(const std::vector<ExportedTensor>& tensors) {
  std::string text;
  for (const ExportedTensor& each : tensors) {
    text += (text.empty() ? "" : ", ") + each.name + " " + each.shape;
  }
  return text;
}

// Returns the number of tokens that the caches hold: dimension 2 of keys and
// values, [rows, heads, tokens, width].
int64_t cache_length(const ExportedSignature& signature) {
  int64_t length = std::numeric_limits<int64_t>::max();
  for (const ExportedTensor& each : signature.state) {
    if (each.largest.size() == 4 && each.largest[2] > 0) {
      length = std::min(length, each.largest[2]);
    }
  }
  return length;
}

}  // namespace

TokenInputs::TokenInputs(int64_t window)
    : inputs_{{Kind::kTokens, at::kLong}}, limit_(window) {}

TokenInputs::TokenInputs(const ExportedSignature& signature) {
  const ExportedTensor* tokens = nullptr;
  const auto kind_of = [&](const ExportedTensor& each) {
    const std::size_t dimensions = each.sizes.size();
    if (each.dtype == at::kLong && dimensions == 1) return Kind::kPlaces;
    if (each.name == "attention_mask") {
      if (dimensions == 4) return Kind::kCausalMask;
      if (dimensions == 2) return Kind::kMask;
    }
    if (each.dtype == at::kLong && dimensions == 2) {
      if (each.name == "position_ids") return Kind::kPlacesOfRows;
      if (!tokens) {
        tokens = &each;
        return Kind::kTokens;
      }
    }
    TORCH_CHECK_VALUE(
        false, "the program takes ", list_of(signature.inputs),
        ", but generation knows no value for ", each.name,
        "; export a program of the tokens alone, or with a cache_position, "
        "position_ids or an attention_mask");
  };
  for (const ExportedTensor& each : signature.inputs) {
    inputs_.push_back({kind_of(each), each.dtype.value_or(at::kFloat)});
  }
  TORCH_CHECK_VALUE(tokens && signature.outputs.size() == 1 &&
                        signature.outputs[0].sizes.size() == 3,
                    "the program takes ", list_of(signature.inputs),
                    " and returns ", list_of(signature.outputs),
                    "; generation needs tokens, int64 [rows, tokens], and "
                    "logits, [rows, tokens, vocabulary]");
  TORCH_CHECK_VALUE(tokens->sizes[0].value_or(1) == 1, "the program takes ",
                    list_of(signature.inputs),
                    ", but each sequence is a row of its own; export it for 1 "
                    "row or with dynamic_shapes={0: torch.export.Dim(...)}");
  fixed_ = tokens->sizes[1].value_or(0);
  has_cache_ = !signature.state.empty();
  limit_ = has_cache_ ? cache_length(signature) : tokens->largest[1];
  TORCH_CHECK_VALUE(!has_cache_ || fixed_ <= 1, "the program takes ", fixed_,
                    " tokens and their places in each call; export it for 1 "
                    "token, or with a dynamic number");
}

at::Tensor TokenInputs::make(const Input& input,
                             const std::vector<int64_t>& tokens, int64_t first,
                             int64_t count, int64_t padded) const {
  switch (input.kind) {
    case Kind::kTokens: {
      std::vector<int64_t> row(tokens.begin() + first,
                               tokens.begin() + first + count);
      row.resize(padded);
      return at::tensor(row).unsqueeze(0);
    }
    case Kind::kPlaces:
      return at::arange(first, first + padded, at::kLong);
    case Kind::kPlacesOfRows:
      return at::arange(first, first + padded, at::kLong).unsqueeze(0);
    case Kind::kMask:
      return (at::arange(padded) < count).to(input.dtype).unsqueeze(0);
    case Kind::kCausalMask:
      break;
  }
  const at::Tensor sees =
      at::ones({1, 1, padded, padded}, at::TensorOptions(at::kBool)).tril();
  if (!c10::isFloatingType(input.dtype)) return sees.to(input.dtype);
  return at::zeros(sees.sizes(), input.dtype)
      .masked_fill_(sees.logical_not(), -INFINITY);
}

TokenInputs::Call TokenInputs::next(const std::vector<int64_t>& tokens,
                                    int64_t known) const {
  const auto size = static_cast<int64_t>(tokens.size());
  TORCH_CHECK_VALUE(size <= limit_, "the sequence has ", size,
                    " tokens, but the model takes at most ", limit_);
  const int64_t first = has_cache_ ? known : 0;
  const int64_t count = has_cache_ && fixed_ > 0 ? fixed_ : size - first;
  const int64_t padded = fixed_ > 0 ? fixed_ : count;
  Call call;
  call.tokens = first + count;
  call.last = count - 1;
  call.sample.input = make(inputs_[0], tokens, first, count, padded);
  for (std::size_t k = 1; k < inputs_.size(); ++k) {
    call.sample.further.push_back(
        make(inputs_[k], tokens, first, count, padded));
  }
  return call;
}

}  // namespace gpipe::train_program
