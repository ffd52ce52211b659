// Plans and results of resnet101_accuracy as tables.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/table.h"
#include "benchmarks/resnet101_accuracy_plan.h"
#include "benchmarks/resnet101_accuracy_train.h"

namespace gpipe::benchmarks {

// A row, and what came of it.
struct AccuracyOutcome {
  AccuracyPlan plan;
  AccuracyResult result;
  std::string error;  // why there is no result; "" if there is one
};

// What is to be run and how.
Table accuracy_plan_table(const AccuracyOptions& options);

// Of a run without --experiment, a row per epoch, and with --published those of
// torchgpipe at the end of its 90.
Table epochs_table(const AccuracyOutcome& outcome, bool published);

// Of a run with --experiment: a row per experiment, what it had after its last
// epoch and, with --published, the papers' figures. Samples per second are the
// median of the epochs but the first, where there are several.
Table accuracy_rows_table(const AccuracyOptions& options,
                          const std::vector<AccuracyOutcome>& outcomes);

}  // namespace gpipe::benchmarks
