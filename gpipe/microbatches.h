// A mini-batch in parts, for inputs and targets that are split already.
#pragma once

#include <vector>

namespace gpipe {

// A mini-batch that is already split, with one part per micro-batch.
// Parts may have any shapes. `T` is a tensor, a vector or a tuple of tensors.
template <typename T>
struct Microbatches {
  std::vector<T> parts;
};

}  // namespace gpipe
