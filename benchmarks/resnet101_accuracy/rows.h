// The rows of the papers' tables about accuracy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment/experiment.h"

namespace gpipe::benchmarks {

// One row of a paper's table.
struct AccuracyRow {
  Experiment experiment;           // its chunks have equal sizes
  std::optional<int64_t> devices;  // the number of devices in the paper
  std::optional<double> rate;      // the learning rate after the warm-up
  std::string left_out;            // the reason not to train it; "" if it is
};

// The rows at one size: as published, or reduced.
struct AccuracyTable {
  std::vector<AccuracyRow> rows;
  int64_t epochs = 0;
  int64_t image_size = 0;  // height and width
  double warmup_epochs = 0;
  // The learning rate at the start of the warm-up. None: a tenth of the row's
  // rate.
  std::optional<double> warmup_rate;
};

// Returns the names of the columns of Experiment::published in these rows: the
// top-1 error and its deviation over runs, both in percent; samples per second;
// and their ratio to those of dataparallel-256.
const std::vector<std::string>& accuracy_columns();

// Returns the rows for ResNet-101 on ImageNet of torchgpipe's benchmark
// resnet101-accuracy (Kim et al., arXiv 2004.09910), including the
// data-parallel rows that its table compares pipelines with, and the rows for
// AmoebaNet-B of GPipe's table 4 (arXiv 1811.06965).
//
// `small`: sizes for a few CPU cores, with an eighth of each mini-batch, a
// hundredth of each learning rate and 4 to 8 micro-batches.
AccuracyTable accuracy_table(bool small);

}  // namespace gpipe::benchmarks
