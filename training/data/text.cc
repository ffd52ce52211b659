#include "training/data/text.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "gpipe/base/files.h"
#include "training/data/random.h"

namespace gpipe::data {

// ---- Windows

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

// ---- Sequences

Sequences::Sequences(const at::Tensor& tokens, int64_t end, int64_t longest)
    : tokens_(tokens.contiguous()), end_(end), longest_(longest) {
  TORCH_CHECK_VALUE(longest > 0, "sequences of at most ", longest,
                    " tokens; give a length of at least 1");
  const auto* values = tokens_.const_data_ptr<int64_t>();
  const int64_t size = tokens_.size(0);
  for (int64_t begin = 0; begin < size;) {
    const int64_t last = std::find(values + begin, values + size, end) - values;
    const int64_t next = std::min(last + 1, size);
    places_.push_back({begin, std::min(next - begin, longest)});
    begin = next;
  }
}

int64_t Sequences::num_tokens() const {
  int64_t sum = 0;
  for (const Place& each : places_) sum += each.length;
  return sum;
}

Sequences Sequences::slice(int64_t begin, int64_t end) const {
  Sequences some = *this;
  some.places_.assign(places_.begin() + begin, places_.begin() + end);
  return some;
}

int64_t Sequences::padded_length(int64_t length, int64_t multiple) const {
  return std::min((length + multiple - 1) / multiple * multiple, longest_);
}

TextWindows Sequences::rows(const std::vector<int64_t>& indices,
                            int64_t multiple) const {
  int64_t longest = 0;
  for (const int64_t index : indices) {
    longest = std::max(longest, length(index));
  }
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t columns = padded_length(longest, multiple);
  TextWindows rows{at::full({count, columns}, end_, at::kLong),
                   at::full({count, columns}, kNoTarget, at::kLong)};
  const auto* values = tokens_.const_data_ptr<int64_t>();
  auto* input = rows.inputs.mutable_data_ptr<int64_t>();
  auto* target = rows.targets.mutable_data_ptr<int64_t>();
  for (const int64_t index : indices) {
    const Place& place = places_[index];
    std::copy_n(values + place.begin, place.length, target);
    std::copy_n(values + place.begin, place.length - 1, input + 1);
    input += columns;
    target += columns;
  }
  return rows;
}

// ---- Micro-batches of sequences that have similar lengths

namespace {

// Cuts rows into `count` parts of at most `most` tokens, each as long as
// possible. Returns the rows of each, or nothing if there are more rows.
std::vector<int64_t> cut_at_most(const std::vector<int64_t>& lengths,
                                 int64_t count, int64_t most) {
  const auto rows = static_cast<int64_t>(lengths.size());
  std::vector<int64_t> cut;
  int64_t begin = 0;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t last = rows - (count - k - 1);  // later parts need a row each
    int64_t end = begin;
    while (end < last && (end - begin + 1) * lengths[end] <= most) ++end;
    cut.push_back(end - begin);
    begin = end;
  }
  if (begin < rows) cut.clear();
  return cut;
}

}  // namespace

std::vector<int64_t> cut_by_tokens(const std::vector<int64_t>& lengths,
                                   int64_t count) {
  int64_t low = lengths.back();
  int64_t high = static_cast<int64_t>(lengths.size()) * lengths.back();
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (cut_at_most(lengths, count, middle).empty()) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return cut_at_most(lengths, count, high);
}

SequenceLoader::SequenceLoader(Sequences sequences, int64_t multiple,
                               uint64_t seed)
    : sequences_(std::move(sequences)), multiple_(multiple), seed_(seed) {
  TORCH_CHECK_VALUE(multiple > 0, "lengths that are a multiple of ", multiple,
                    "; give a multiple of at least 1");
  TORCH_CHECK_VALUE(sequences_.size() > 0,
                    "there are 0 sequences; give at least one");
}

std::vector<int64_t> SequenceLoader::indices(int64_t begin, int64_t end) {
  std::vector<int64_t> found;
  for (int64_t place = begin; place < end; ++place) {
    const int64_t epoch = place / sequences_.size();
    if (epoch != epoch_) {
      order_ = permutation(sequences_.size(), mix_seed(seed_, 2, epoch));
      epoch_ = epoch;
    }
    found.push_back(order_[place % sequences_.size()]);
  }
  return found;
}

TextWindows SequenceLoader::rows(int64_t begin, int64_t end) {
  return sequences_.rows(indices(begin, end), multiple_);
}

std::vector<TextWindows> SequenceLoader::parts(int64_t begin, int64_t end,
                                               int64_t count) {
  TORCH_CHECK_VALUE(count > 0 && end - begin >= count, "cannot cut ",
                    end - begin, " sequences into ", count,
                    " micro-batches; give at least one sequence for each "
                    "micro-batch");
  std::vector<int64_t> sorted = indices(begin, end);
  // Stable, so that equal lengths keep the order of the stream.
  std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) {
    return sequences_.length(a) < sequences_.length(b);
  });
  std::vector<int64_t> lengths;
  for (const int64_t index : sorted) {
    lengths.push_back(
        sequences_.padded_length(sequences_.length(index), multiple_));
  }
  std::vector<TextWindows> parts;
  auto first = sorted.cbegin();
  for (const int64_t rows : cut_by_tokens(lengths, count)) {
    parts.push_back(sequences_.rows({first, first + rows}, multiple_));
    first += rows;
  }
  return parts;
}

}  // namespace gpipe::data
