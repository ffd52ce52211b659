// The sequences of a text, such as its lines, as padded rows of tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "training/data/text.h"

namespace gpipe::data {

// The target of a padded place, which has no loss. It is the default
// ignore_index of LibTorch's cross_entropy().
constexpr int64_t kNoTarget = -100;

// The sequences of a text. Each ends with the end token, which belongs to it.
// The last one may end with the text instead.
//
// The targets of a sequence are its tokens. The input of a target is the token
// before it, and that of the first target is the end token. So each token of
// the text is a target once, unless its sequence is cut.
// Threads: several threads may call const methods at once.
class Sequences {
 public:
  // `tokens`: int64, [size]. `end`: the end token. `longest`: a sequence is cut
  // after this number of tokens, and its other tokens are left out. Throws
  // c10::ValueError if `longest` is below 1.
  Sequences(const at::Tensor& tokens, int64_t end, int64_t longest);

  int64_t size() const { return static_cast<int64_t>(places_.size()); }
  // Returns the number of tokens of sequence `index`.
  int64_t length(int64_t index) const { return places_[index].length; }
  // Returns the number of tokens of all sequences.
  int64_t num_tokens() const;
  // Returns the sequences from `begin` to `end`, without `end`. They share the
  // memory of the tokens.
  Sequences slice(int64_t begin, int64_t end) const;

  // Returns `length` rounded up to a multiple of `multiple`, but at most
  // `longest`.
  int64_t padded_length(int64_t length, int64_t multiple) const;
  // Returns the sequences `indices` as rows, int64, [rows, padded length of the
  // longest one]. Padding has the input `end` and the target kNoTarget.
  TextWindows rows(const std::vector<int64_t>& indices, int64_t multiple) const;

 private:
  struct Place {
    int64_t begin, length;  // in tokens
  };

  at::Tensor tokens_;  // contiguous
  int64_t end_;
  int64_t longest_;
  std::vector<Place> places_;
};

}  // namespace gpipe::data
