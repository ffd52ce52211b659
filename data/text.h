// A text file as tokens, for language models over characters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace gpipe::data {

// Rows of tokens and, of the same shape, what comes after each of them:
// targets[i][k] follows inputs[i][k] in the text.
struct TextWindows {
  at::Tensor inputs;   // int64, [rows, length]
  at::Tensor targets;  // int64, [rows, length]
};

// A piece of a text. Threads: const calls may be made from several at once.
class TextPart {
 public:
  // `tokens`: int64, [size]; `name` is for errors.
  TextPart(at::Tensor tokens, std::string name);

  int64_t size() const { return tokens_.size(0); }
  const at::Tensor& tokens() const { return tokens_; }

  // For training: `rows` windows at random places, which may overlap. They
  // depend on the arguments alone.
  TextWindows random_windows(int64_t rows, int64_t length, uint64_t seed) const;

  // For testing: window i begins at token i * length. Together they have each
  // token but the first as a target once, without a remainder at the end of
  // fewer than `length`. Not to be written to.
  TextWindows all_windows(int64_t length) const;

  // Errors of both: c10::ValueError, naming the text, if it is shorter than
  // length + 1; or for rows or a length below 1.

 private:
  void check(int64_t length) const;

  at::Tensor tokens_;
  std::string name_;
};

// A whole file in memory. Its vocabulary are the bytes that occur in it, in
// ascending order: token t stands for vocabulary()[t], so that a character
// outside of ASCII is several tokens.
class Text {
 public:
  // c10::ValueError, naming the file: cannot be read, or is empty.
  explicit Text(const std::string& path);

  const std::string& vocabulary() const { return vocabulary_; }
  const at::Tensor& tokens() const { return tokens_; }  // int64, [size]

  // The text but for its end, and its end, `held_out` of the whole (rounded).
  // c10::ValueError unless 0 < held_out < 1. The parts share the memory of
  // tokens().
  TextPart train(double held_out) const;
  TextPart test(double held_out) const;

  // The text that int64 tokens [any] stand for. c10::ValueError for one that is
  // not in the vocabulary, or for a tensor of another type or dimension.
  std::string decode(const at::Tensor& tokens) const;

 private:
  int64_t held_out_size(double held_out) const;

  std::string path_;
  std::string vocabulary_;
  at::Tensor tokens_;
};

}  // namespace gpipe::data
