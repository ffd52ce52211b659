// The inputs of a model that continues sequences of tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "models/exported/exported.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// Makes the inputs of the calls that continue a sequence.
//
// A model without a cache reads all tokens of the sequence in each call. If its
// number of tokens is fixed, zeros follow, so the model must be causal. A model
// with a cache reads each token once, and keeps it in its buffers.
class TokenInputs {
 public:
  // A model of models/ that takes 1 to `window` tokens.
  explicit TokenInputs(int64_t window);

  // An exported program. Its inputs are, by their forms and names:
  //   [rows, tokens] int64            the tokens
  //   [tokens] int64                  their places, such as cache_position
  //   [rows, tokens] position_ids     their places
  //   [rows, tokens] attention_mask   1 for each token
  //   [rows, 1, tokens, tokens] attention_mask   bool: whether token i sees
  //       token j; floating point: 0 if it does, else -infinity
  //
  // Throws c10::ValueError with the inputs and outputs of the program if they
  // are others.
  explicit TokenInputs(const ExportedSignature& signature);

  // Returns whether the program has a cache, ExportedSignature::state.
  bool has_cache() const { return has_cache_; }
  // Returns the most tokens that a sequence may have.
  int64_t limit() const { return limit_; }

  struct Call {
    Sample sample;       // one row
    int64_t tokens = 0;  // of the sequence that the model knows after the call
    int64_t last = 0;    // the place in the output of the last token's logits
  };
  // Returns the next call for a sequence of which the model knows `known`
  // tokens. Throws c10::ValueError with both numbers if there are more tokens
  // than limit().
  Call next(const std::vector<int64_t>& tokens, int64_t known) const;

 private:
  enum class Kind { kTokens, kPlaces, kPlacesOfRows, kMask, kCausalMask };
  struct Input {
    Kind kind;
    c10::ScalarType dtype;
  };
  at::Tensor make(const Input& input, const std::vector<int64_t>& tokens,
                  int64_t first, int64_t count, int64_t padded) const;

  std::vector<Input> inputs_;
  bool has_cache_ = false;
  int64_t limit_ = 0;
  int64_t fixed_ = 0;  // the number of tokens of a call; 0: any
};

}  // namespace gpipe::train_program
