// The plans and results of resnet101_accuracy as tables.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/table.h"
#include "benchmarks/resnet101_accuracy/plan.h"
#include "benchmarks/resnet101_accuracy/train.h"

namespace gpipe::benchmarks {

// The plan of a training with its result.
struct AccuracyOutcome {
  AccuracyPlan plan;
  AccuracyResult result;
  std::string error;  // the reason why there is no result; "" if there is one
};

// Returns a table of the plans, for --dry_run.
Table accuracy_plan_table(const AccuracyOptions& options);

// Returns the table of a run without --experiment: a row per epoch and, if
// `published` is true, torchgpipe's rows with their results after 90 epochs.
Table epochs_table(const AccuracyOutcome& outcome, bool published);

// Returns the table of a run with --experiment: a row per experiment with its
// results after the last epoch and, with --published, the papers' figures.
// Samples per second are the median over the epochs. The first epoch counts
// only if there is no other one.
Table accuracy_rows_table(const AccuracyOptions& options,
                          const std::vector<AccuracyOutcome>& outcomes);

}  // namespace gpipe::benchmarks
