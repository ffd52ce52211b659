// What has to be true of a reader, whatever it is given.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "weights/state_dict.h"

namespace gpipe::testing {

// Calls `read`, which may throw c10::ValueError and nothing else, and ends the
// process, with a message, if
// - a single allocation was larger than 16 bytes per byte of input and 8 KiB (a
//   stack of pointers that has grown, and an error's text), or
// - more than 160 bytes per byte of input and 64 KiB were held at a time, or
// - a tensor's first or last element is not in its memory (ASan tells).
void check_reader(std::size_t input_size,
                  const std::function<StateDict()>& read);

// Of all calls so far. Threads: the one that calls check_reader().
struct ReaderCounts {
  int64_t read = 0;
  int64_t refused = 0;
};
ReaderCounts reader_counts();

}  // namespace gpipe::testing
