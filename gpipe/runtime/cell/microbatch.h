// Splits a mini-batch into micro-batches and concatenates their outputs.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "gpipe/runtime/cell/value.h"

namespace gpipe::internal {

// Checks the input of a pipeline. It must have at least one defined tensor, and
// each defined tensor must have a dimension 0 of the same size. Only a vector
// or a tuple may have undefined elements. Throws c10::ValueError
// (c10::TypeError if the input is one undefined tensor) that names the element
// and the sizes.
void check_rows(const Value& input);

// Checks that the tensors of `input` are on one of `devices`. The first of
// `devices` is the device of the first partition. Throws c10::ValueError
// otherwise. `found_by`: the accessor named in the error.
void check_device(const Value& input, c10::ArrayRef<c10::Device> devices,
                  const char* found_by);

// Does both checks for a pipeline whose devices()[0] is `device`.
void check_input(const Value& input, const c10::Device& device);

// Returns the size of dimension 0 of the first tensor that has one; 0 if there
// is none.
int64_t rows_of(const Value& value);

// Returns the number of micro-batches that `input` gives with `chunks`; 1 if
// it has no rows. Throws as check_rows() does.
int64_t count_microbatches(const Value& input, int64_t chunks);

// Splits `input` along dimension 0 as torch::chunk does, into pieces of
// ceil(rows / chunks) rows. The last piece may be smaller, and there may be
// fewer than `chunks` pieces. The pieces are views. An undefined tensor is
// undefined in each piece.
std::vector<Value> scatter(const Value& input, int64_t chunks);

// Concatenates `pieces` along dimension 0. A single piece is returned
// unchanged. Throws c10::ValueError, with the number of the micro-batch, if the
// pieces do not fit together.
Value gather(const std::vector<Value>& pieces);

}  // namespace gpipe::internal
