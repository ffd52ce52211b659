#include "training/data/sequences.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace gpipe::data {

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

}  // namespace gpipe::data
