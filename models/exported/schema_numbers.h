// The numbers of dtypes, layouts and memory formats in exported programs.
#pragma once

#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace gpipe::exported {

// Return the dtype or memory format of a number of PyTorch's
// torch/_export/serde/schema.py. The numbers differ from those of c10. Throw
// c10::ValueError if the number is unknown. Thread-safe.
c10::ScalarType dtype_of(int64_t number);
c10::MemoryFormat memory_format_of(int64_t number);

// Throws c10::ValueError unless `number` is that of strided tensors, the only
// layout that is read. Thread-safe.
void check_layout(int64_t number);

}  // namespace gpipe::exported
