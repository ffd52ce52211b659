// A warning about outputs that do not have the rows of their inputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/runtime/cell/value.h"

namespace gpipe::internal {

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
