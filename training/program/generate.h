// The continuation of sequences of tokens by a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "training/program/task.h"
#include "training/program/token_inputs.h"
#include "training/program/token_sampler.h"

namespace gpipe::train_program {

using Tokens = std::vector<int64_t>;

// What is generated, and when a sequence ends.
struct GenerateOptions {
  int64_t max_tokens = 64;  // of each sequence, beside its prompt
  int64_t in_flight = 4;    // sequences that are generated beside each other
  SamplingOptions sampling;
  // Sequence i draws from a generator that is seeded by this seed and i.
  uint64_t seed = 0;
  Tokens ends;                // a sequence ends after any of these tokens
  std::vector<Tokens> stops;  // or after any of these lists of tokens
  // Whether a sequence that is longer than TokenInputs::limit() continues with
  // its last tokens. Else its prompt and max_tokens must fit.
  bool slides = false;
};

// The model, as generate() calls it.
struct TokenModel {
  TokenInputs inputs;
  int64_t vocabulary = 0;
  // Runs a micro-batch for each part and returns their logits on the CPU,
  // [1, tokens, vocabulary]; nullopt on a process without the last stage.
  // `sequences`: which sequence each part belongs to.
  std::function<std::optional<std::vector<at::Tensor>>(
      const std::vector<Sample>& parts, const std::vector<int64_t>& sequences)>
      forward;
  // Returns the texts of all processes, by rank.
  std::function<std::vector<std::string>(const std::string& mine)> exchange;
};

// Continues each of `prompts`, and returns prompts with their continuations.
// Up to GenerateOptions::in_flight sequences are micro-batches of each forward.
// A new one begins when another has ended. In several processes, all call this
// with the same arguments and get the same result.
//
// `on_end`: a function that is called with the index of each sequence that has
// ended; may be null.
//
// Throws c10::ValueError with the numbers if a prompt is empty, has a token
// outside of the vocabulary, or does not fit the model with max_tokens; and if
// an option is out of its range.
std::vector<Tokens> generate(
    const TokenModel& model, const std::vector<Tokens>& prompts,
    const GenerateOptions& options,
    const std::function<void(int64_t index, const Tokens&)>& on_end = nullptr);

}  // namespace gpipe::train_program
