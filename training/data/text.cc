#include "training/data/text.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <utility>

#include "gpipe/base/read_file.h"
#include "training/data/random.h"

namespace gpipe::data {

TextPart::TextPart(at::Tensor tokens, std::string name)
    : tokens_(std::move(tokens)), name_(std::move(name)) {}

void TextPart::check(int64_t length) const {
  TORCH_CHECK_VALUE(length > 0, "windows of ", length, " tokens");
  TORCH_CHECK_VALUE(size() > length, name_, ": has ", size(),
                    " tokens; windows of ", length, " need at least ",
                    length + 1, ". Take a longer text or shorter windows");
}

TextWindows TextPart::random_windows(int64_t rows, int64_t length,
                                     uint64_t seed) const {
  check(length);
  TORCH_CHECK_VALUE(rows > 0, "a batch of ", rows, " windows");
  const int64_t places = size() - length;
  at::Tensor chosen = at::empty({rows}, at::kLong);
  Random random(seed);
  for (int64_t i = 0; i < rows; ++i) {
    chosen.mutable_data_ptr<int64_t>()[i] = random.below(places);
  }
  // The view has all windows; index_select() copies the chosen ones.
  const auto windows_from = [&](int64_t first) {
    return tokens_.narrow(0, first, size() - 1)
        .unfold(0, length, /*step=*/1)
        .index_select(0, chosen);
  };
  return {windows_from(0), windows_from(1)};
}

TextWindows TextPart::all_windows(int64_t length) const {
  check(length);
  const auto windows_from = [&](int64_t first) {
    return tokens_.narrow(0, first, size() - 1)
        .unfold(0, length, /*step=*/length);
  };
  return {windows_from(0), windows_from(1)};
}

Text::Text(const std::string& path) : path_(path) {
  const std::string text = internal::read_file(path);
  std::array<bool, 256> occurs{};
  for (const char c : text) occurs[static_cast<unsigned char>(c)] = true;
  std::array<int64_t, 256> token_of{};
  for (size_t byte = 0; byte < occurs.size(); ++byte) {
    if (!occurs[byte]) continue;
    token_of[byte] = static_cast<int64_t>(vocabulary_.size());
    vocabulary_.push_back(static_cast<char>(byte));
  }
  tokens_ = at::empty({static_cast<int64_t>(text.size())}, at::kLong);
  auto* out = tokens_.mutable_data_ptr<int64_t>();
  for (const char c : text) *out++ = token_of[static_cast<unsigned char>(c)];
}

int64_t Text::held_out_size(double held_out) const {
  TORCH_CHECK_VALUE(held_out > 0 && held_out < 1,
                    "held_out must be above 0 and below 1, but is ", held_out);
  return std::llround(static_cast<double>(tokens_.size(0)) * held_out);
}

TextPart Text::train(double held_out) const {
  const int64_t size = tokens_.size(0) - held_out_size(held_out);
  return {tokens_.narrow(0, 0, size), path_ + " (its part for training)"};
}

TextPart Text::test(double held_out) const {
  const int64_t size = held_out_size(held_out);
  return {tokens_.narrow(0, tokens_.size(0) - size, size),
          path_ + " (its part for testing)"};
}

std::string Text::decode(const at::Tensor& tokens) const {
  TORCH_CHECK_VALUE(tokens.dim() == 1 && tokens.scalar_type() == at::kLong,
                    "expected tokens, int64 [any], got ", tokens.scalar_type(),
                    " ", tokens.sizes());
  const at::Tensor list = tokens.cpu().contiguous();
  const auto* values = list.const_data_ptr<int64_t>();
  const auto known = static_cast<int64_t>(vocabulary_.size());
  std::string text;
  for (int64_t i = 0; i < list.size(0); ++i) {
    TORCH_CHECK_VALUE(values[i] >= 0 && values[i] < known, "token ", values[i],
                      " is not in the vocabulary of ", known, " of ", path_);
    text.push_back(vocabulary_[values[i]]);
  }
  return text;
}

}  // namespace gpipe::data
