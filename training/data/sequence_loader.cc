#include "training/data/sequence_loader.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "training/data/random.h"

namespace gpipe::data {
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
