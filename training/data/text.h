// Reads a text file as tokens, for language models over characters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace gpipe::data {

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

}  // namespace gpipe::data
