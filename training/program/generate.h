// The continuation of sequences of tokens by a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/exported/exported.h"
#include "training/data/random.h"
#include "training/program/engine.h"
#include "training/program/options.h"
#include "training/program/step.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// ---- The inputs of a model

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
  //   [rows, keys] attention_mask     1 for each token
  //   [rows, 1, tokens, keys] attention_mask   bool: whether token i sees
  //       token j; floating point: 0 if it does, else -infinity
  // The keys are the tokens, and with a cache those before them, too. If their
  // number is fixed, the mask hides those that are not there.
  //
  // `with_state`: whether a call changes ExportedSignature::state, which then
  // is a cache. Without sets of buffers eval() leaves the state as it is, and
  // each call reads all tokens.
  //
  // Throws c10::ValueError with the inputs and outputs of the program if they
  // are others.
  explicit TokenInputs(const ExportedSignature& signature,
                       bool with_state = true);

  // Returns whether the program has a cache.
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
    std::optional<int64_t> keys;  // of a mask, if their number is fixed
  };
  at::Tensor make(const Input& input, const std::vector<int64_t>& tokens,
                  int64_t first, int64_t count, int64_t padded) const;

  std::vector<Input> inputs_;
  bool has_cache_ = false;
  int64_t limit_ = 0;
  int64_t fixed_ = 0;  // the number of tokens of a call; 0: any
};

// ---- The next token

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

// ---- Sequences

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
  // Deletes what the model keeps of sequences. Null if it keeps nothing. Must
  // not throw.
  std::function<void()> forget = nullptr;
};

// Continues each of `prompts`, and returns prompts with their continuations.
// Up to GenerateOptions::in_flight sequences are micro-batches of each forward.
// A new one begins when another has ended. In several processes, all call this
// with the same arguments and get the same result. At the end, also after an
// error, the model forgets the sequences.
//
// Throws c10::ValueError with the numbers if a prompt is empty, or does not fit
// the model with max_tokens; if a prompt, `ends` or `stops` have a token
// outside of the vocabulary; and if an option is out of its range.
std::vector<Tokens> generate(const TokenModel& model,
                             const std::vector<Tokens>& prompts,
                             const GenerateOptions& options);

// ---- A text that the model of a run writes

// Throws c10::ValueError if Options::sample is negative, or if it is positive
// and the data is no text, or the model takes what TokenInputs does not make.
void check_sample(const Options& options, const Task& task);

// Returns Options::sample characters that the model writes after the first ones
// of the test data, with those. Each is drawn with the temperature 0.8, from a
// generator that depends on Options::seed and `step` only. The module is in
// evaluation mode during the call and returns to its mode after. All processes
// call this, and get the same text.
std::string sample_text(Engine& engine, Task& task, const Options& options,
                        const Precision& precision, int64_t step);

// ---- The program examples/generate.cc

// The flags of the program beside those of a training run. Lists of tokens are
// numbers with "," or spaces between them.
struct GenerateRun {
  std::string prompt_tokens;  // lists of tokens with ";" between them
  std::string prompts;        // the path of a file with a list in each line
  std::string prompt;         // a text, if Options::data_dir is given
  int64_t samples = 1;        // sequences for each prompt
  std::string eos;            // a list: GenerateOptions::ends
  // GenerateOptions::stops: lists with ";" between them; with
  // Options::data_dir, a text.
  std::string stop;
  GenerateOptions options;
};

// Loads the model of Options::model, Options::weights and Options::adapter, and
// continues the prompts with it, in one process or several. On the first
// process calls `print` with each sequence in the order of the prompts: its
// tokens, or a text if Options::data_dir is given, whose vocabulary is that of
// the model; and calls `say` with lines about the run.
//
// Layers are divided among the partitions so that the bytes of their weights
// are as even as possible, unless Options::balance is a list.
//
// Throws c10::ValueError or std::invalid_argument if the options do not fit,
// and what the model throws.
void run_generate(const Options& options, const GenerateRun& run,
                  const Print& print, const Print& say);

}  // namespace gpipe::train_program
