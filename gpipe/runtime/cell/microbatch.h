// Splits a mini-batch into micro-batches and concatenates their outputs.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/runtime/cell/value.h"

namespace gpipe::internal {

// Indices of elements of a vector or a tuple that every micro-batch gets whole;
// see GPipeOptions::unsplit.
using Unsplit = std::vector<int64_t>;

// Returns whether element `k` is in `unsplit`.
bool is_unsplit(const Unsplit& unsplit, std::size_t k);

// Throws c10::ValueError if an index is negative or occurs twice.
void check_unsplit(const Unsplit& unsplit);

// Checks the input of a pipeline. It must have at least one defined tensor, and
// each defined tensor must have a dimension 0 of the same size, except elements
// in `unsplit`. Only a vector or a tuple may have undefined elements. Throws
// c10::ValueError (c10::TypeError if the input is one undefined tensor) that
// names the element and the sizes. Throws c10::ValueError if `input` does not
// have the elements in `unsplit`.
//
// If the batch is split, there must be at least one part, and a part must not
// be an undefined tensor. Parts may have any shapes.
void check_rows(const Batch& input, const Unsplit& unsplit = {});

// Checks that the tensors of `input` are on one of `devices`. The first of
// `devices` is the device of the first partition. Throws c10::ValueError
// otherwise. `found_by`: the accessor named in the error.
void check_device(const Batch& input, c10::ArrayRef<c10::Device> devices,
                  const char* found_by);

// Does both checks for a pipeline whose devices()[0] is `device`.
void check_input(const Batch& input, const c10::Device& device,
                 const Unsplit& unsplit = {});

// Returns the size of dimension 0 of the first tensor that has one and is not
// in `unsplit`; 0 if there is none.
int64_t rows_of(const Value& value, const Unsplit& unsplit = {});

// Returns whether a tensor of `value` has a dimension 0, also one of size 0.
bool has_row_dimension(const Value& value);

// Returns the number of micro-batches that `input` gives with `chunks`: the
// number of parts if it is split, 1 if it has no rows. Throws as check_rows()
// does.
int64_t count_microbatches(const Batch& input, int64_t chunks,
                           const Unsplit& unsplit = {});

// Splits `input` along dimension 0 into pieces with `rows` rows each, whose sum
// is the number of rows. The pieces are views. An undefined tensor is undefined
// in each piece, and a tensor in `unsplit` is whole in each.
std::vector<Value> scatter(const Value& input, const std::vector<int64_t>& rows,
                           const Unsplit& unsplit = {});

// Concatenates `pieces` along dimension 0. A single piece is returned
// unchanged. Throws c10::ValueError, with the number of the micro-batch, if the
// pieces do not fit together.
Value gather(const std::vector<Value>& pieces);

// Returns a text about the first tensor of `outputs`, the outputs of the
// micro-batches, whose rows (dimension 0) do not belong to the rows of the
// input. Returns "" if there is none. `rows`: of the input, by micro-batch.
//
// A layer that reduces over rows, such as x.mean(0, true), gives a row for each
// micro-batch, where the plain model gives one row. The same multiple of the
// input's rows in all micro-batches is no such case, and neither is a single
// micro-batch.
std::string describe_other_rows(const std::vector<Value>& outputs,
                                const std::vector<int64_t>& rows);

// Warns with this text, if there is one, once in the life of the process
// (TORCH_WARN_ONCE).
void warn_of_other_rows(const std::vector<Value>& outputs,
                        const std::vector<int64_t>& rows);

}  // namespace gpipe::internal
