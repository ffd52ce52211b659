// Contents, comparison and names of run checkpoints, for tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "models/testing/files.h"
#include "training/run_state.h"

namespace gpipe::testing {

// Expects that `a` and `b` are equal, bit by bit.
void expect_equal(const RunState& a, const RunState& b);

// Returns the floats `first`, `first` + 1, ...
at::Tensor numbers(int64_t count, double first);

// Returns a state of a few hundred bytes that differs for each step.
RunState small_state(int64_t step);

// Returns a new path without a "/" at its end.
std::string run_folder();

// Returns the name of the folder into which this process writes a step.
std::string temporary_name(int64_t step);

// Returns the text of a manifest with `by` in place of `what`, and with the
// checksum of that text.
std::string changed_manifest(std::string manifest, const std::string& what,
                             const std::string& by);

}  // namespace gpipe::testing
