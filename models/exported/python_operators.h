// Operators that Python libraries define in Python, so that LibTorch lacks them
// and programs have only their names.
#pragma once

namespace gpipe::exported {

// Registers these operators with LibTorch's dispatcher, unless other code has:
//
// - transformers::grouped_mm_fallback, which mixtures of experts of
//   transformers call. It multiplies the rows `offs[k - 1]` to `offs[k] - 1` of
//   `input` by the matrix `weight[k]`. Rows after the last group become 0. On
//   the meta device all do. It has Python's gradients.
//
// Thread-safe.
void register_python_operators();

}  // namespace gpipe::exported
