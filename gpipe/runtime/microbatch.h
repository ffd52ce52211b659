// Splits a mini-batch into micro-batches and puts their outputs together.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "gpipe/runtime/value.h"

namespace gpipe {

// Checks a mini-batch at the door of the pipeline: at least one defined
// tensor, each with a dimension 0 of the same size; only a vector or a tuple
// may hold undefined ones. c10::ValueError (c10::TypeError for an undefined
// tensor alone), naming the element and the sizes.
void check_rows(const Value& input);

// That its tensors are on one of `devices`, of which the first is the first
// partition's. c10::ValueError that says what the user finds it by.
void check_device(const Value& input, c10::ArrayRef<c10::Device> devices,
                  const char* found_by);

// Both, for a pipeline with devices()[0].
void check_input(const Value& input, const c10::Device& device);

// Of the first tensor that has a dimension 0; 0 if there is none.
int64_t rows_of(const Value& value);

// Of a piece of a mini-batch but for the last one, which may have fewer, and
// how many pieces there are; `rows` and `chunks` above 0.
inline int64_t rows_of_piece(int64_t rows, int64_t chunks) {
  return (rows + chunks - 1) / chunks;
}
inline int64_t num_pieces(int64_t rows, int64_t chunks) {
  const int64_t each = rows_of_piece(rows, chunks);
  return (rows + each - 1) / each;
}

// Splits along dimension 0 as torch::chunk does: pieces of
// ceil(rows / chunks) rows, the last one smaller, possibly fewer than
// `chunks`. The pieces are views. Undefined tensors are undefined in each.
std::vector<Value> scatter(const Value& input, int64_t chunks);

// Concatenates along dimension 0; a single piece is returned as it is.
// c10::ValueError if the pieces do not fit together, naming the micro-batch.
Value gather(const std::vector<Value>& pieces);

}  // namespace gpipe
