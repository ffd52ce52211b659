// The choice of the next token from the logits of a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "training/data/random.h"

namespace gpipe::train_program {

// How the next token is chosen.
struct SamplingOptions {
  // Logits are divided by it. 0: the most likely token is taken.
  double temperature = 0;
  // Only this many of the most likely tokens may be drawn. 0: all.
  int64_t top_k = 0;
  // Of these, only the most likely ones whose probabilities add up to this
  // number or more may be drawn.
  double top_p = 1;
};

// Chooses the tokens of one sequence. Draws one random number for each token
// from a generator of its own, so that a sequence does not depend on others.
// Not thread-safe.
class TokenSampler {
 public:
  // Throws c10::ValueError with the value if an option is out of its range:
  // temperature >= 0, top_k >= 0, 0 < top_p <= 1.
  TokenSampler(const SamplingOptions& options, uint64_t seed);

  // Returns a token. `logits`: floating point, [vocabulary], on the CPU. Of
  // tokens with equal logits the one with the smaller number counts as more
  // likely. Throws c10::ValueError if a logit is NaN or +infinity, or if all
  // are -infinity.
  int64_t next(const at::Tensor& logits);

 private:
  SamplingOptions options_;
  data::Random random_;
};

}  // namespace gpipe::train_program
