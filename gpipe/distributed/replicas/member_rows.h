// Which rows of a tensor belong to which replica.
//
// Thread-safe: all functions are pure.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpipe::internal {

// Returns the rows that member `k` of `members` owns of a tensor with `sizes`:
// the first one, and their number. Each member owns an equal share of dimension
// 0, give or take one row. A scalar counts as one row.
std::pair<int64_t, int64_t> rows_of_member(at::IntArrayRef sizes,
                                           std::size_t members, std::size_t k);

// Returns the number of elements of these rows.
int64_t numel_of_member(at::IntArrayRef sizes, std::size_t members,
                        std::size_t k);

// Returns these rows of `tensor` as a view; undefined if there are none, or if
// `tensor` is undefined.
at::Tensor slice_of_member(const at::Tensor& tensor, std::size_t members,
                           std::size_t k);

}  // namespace gpipe::internal
