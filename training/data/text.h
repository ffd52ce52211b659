// Texts as tokens, for language models over characters: windows of a text, and
// its lines as sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::data {

// ---- Windows

// Rows of tokens and the next token of each: targets[i][k] follows inputs[i][k]
// in the text.
struct TextWindows {
  at::Tensor inputs;   // int64, [rows, length]
  at::Tensor targets;  // int64, [rows, length]
};

// A part of a text.
// Threads: several threads may call const methods at once.
class TextPart {
 public:
  // `tokens`: int64, [size]. `name`: the name used in errors.
  TextPart(at::Tensor tokens, std::string name);

  int64_t size() const { return tokens_.size(0); }
  const at::Tensor& tokens() const { return tokens_; }

  // Returns `rows` windows at random places for training. Windows may overlap.
  // The result depends only on the text and the arguments.
  //
  // Throws c10::ValueError with the name if the text is shorter than length +
  // 1, or if `rows` or `length` is below 1.
  TextWindows random_windows(int64_t rows, int64_t length, uint64_t seed) const;

  // Returns consecutive windows for testing: window i begins at token i *
  // length. Each token but the first is a target once. The rest at the end,
  // shorter than `length`, is left out. The result is a view and must not be
  // written to. Same errors as random_windows().
  TextWindows all_windows(int64_t length) const;

 private:
  void check(int64_t length) const;

  at::Tensor tokens_;
  std::string name_;
};

// A whole file in memory. The vocabulary is the bytes that occur in the file,
// in ascending order: token t stands for vocabulary()[t]. So a character
// outside of ASCII is several tokens.
class Text {
 public:
  // Throws c10::ValueError with the path if the file cannot be read or is
  // empty.
  explicit Text(const std::string& path);

  const std::string& vocabulary() const { return vocabulary_; }
  const at::Tensor& tokens() const { return tokens_; }  // int64, [size]

  // train() returns the text without its end, test() returns the end.
  // `held_out`: the length of the end as a fraction of the whole, rounded to
  // tokens. Both parts share the memory of tokens(). Both functions throw
  // c10::ValueError unless 0 < held_out < 1.
  TextPart train(double held_out) const;
  TextPart test(double held_out) const;

  // Returns the text of `tokens`, int64 [any]. Throws c10::ValueError if a
  // token is not in the vocabulary, or if the tensor has another dtype or
  // dimension.
  std::string decode(const at::Tensor& tokens) const;

 private:
  int64_t held_out_size(double held_out) const;

  std::string path_;
  std::string vocabulary_;
  at::Tensor tokens_;
};

// ---- Sequences

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

// ---- Micro-batches of sequences that have similar lengths

// Returns the number of rows in each of `count` parts of consecutive rows, at
// least 1 each. `lengths`: the padded lengths of the rows, ascending. The
// tokens of a part, with padding, are its rows times its largest length. The
// largest part has the fewest tokens possible, since the slowest micro-batch
// determines the bubble of a pipeline. There must be at least `count` rows.
std::vector<int64_t> cut_by_tokens(const std::vector<int64_t>& lengths,
                                   int64_t count);

// An endless stream of sequences for training. It has all sequences of epoch 0
// in a random order, then those of epoch 1 in another order, and so on. The
// stream depends only on the sequences and the seed. Not thread-safe.
class SequenceLoader {
 public:
  // `multiple`: see Sequences::rows(). Throws c10::ValueError if it is below 1
  // or if there are no sequences.
  SequenceLoader(Sequences sequences, int64_t multiple, uint64_t seed);

  // Returns the indices of the sequences at the places from `begin` to `end` of
  // the stream, without `end`.
  std::vector<int64_t> indices(int64_t begin, int64_t end);

  // Returns these sequences as one padded tensor, in the order of the stream.
  TextWindows rows(int64_t begin, int64_t end);

  // Returns these sequences in `count` micro-batches, the shortest sequences
  // first, each padded to its own longest sequence. cut_by_tokens() chooses the
  // micro-batches. Throws c10::ValueError if there are fewer than `count`
  // sequences, or if `count` is below 1.
  std::vector<TextWindows> parts(int64_t begin, int64_t end, int64_t count);

 private:
  const Sequences sequences_;
  const int64_t multiple_;
  const uint64_t seed_;
  int64_t epoch_ = -1;  // of order_
  std::vector<int64_t> order_;
};

}  // namespace gpipe::data
