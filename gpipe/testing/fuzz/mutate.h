// What a fuzz target's own mutator is made of; it defines
// LLVMFuzzerCustomMutator().
#pragma once

#include <cstddef>
#include <cstdint>

// libFuzzer's, or the driver's where that is in its place: changes the `size`
// bytes at `data`, which has room for `max_size`. Returns their number then.
extern "C" std::size_t LLVMFuzzerMutate(uint8_t* data, std::size_t size,
                                        std::size_t max_size);
