// The rows of the papers as options of the train program.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "benchmarks/resnet101_accuracy/rows.h"
#include "training/program/options.h"

namespace gpipe::benchmarks {

// Returns the options that train a row: those of `flags`, except that the row
// determines the options for which `given` returns false. `given(name)`:
// whether the flag --name is on the command line. `steps`: per epoch, for the
// learning rates; 0 if they are not needed yet.
//
// A row without partitions, the plain model, is one partition with one
// micro-batch that is not recomputed. Throws std::invalid_argument if the
// micro-batches would have unequal sizes, which BatchNorm would see.
train_program::Options row_options(
    const AccuracyTable& table, const AccuracyRow& row,
    train_program::Options flags,
    const std::function<bool(const std::string& name)>& given, int64_t steps);

}  // namespace gpipe::benchmarks
