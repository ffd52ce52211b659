// The building block of a fuzz target's own mutator, which defines
// LLVMFuzzerCustomMutator().
#pragma once

#include <cstddef>
#include <cstdint>

// Changes the `size` bytes at `data`, which has space for `max_size` bytes.
// Returns the new size. Defined by libFuzzer, or by the driver that replaces
// it.
extern "C" std::size_t LLVMFuzzerMutate(uint8_t* data, std::size_t size,
                                        std::size_t max_size);
