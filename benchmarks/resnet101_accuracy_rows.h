// The rows of the papers' tables on accuracy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

struct AccuracyRow {
  Experiment experiment;           // its chunks share the mini-batch evenly
  std::optional<int64_t> devices;  // that the published figures are of
  std::optional<double> rate;      // of learning, after the warm-up
  std::string left_out;            // why it is not trained here; "" if it is
};

// The rows at one size.
struct AccuracyTable {
  std::vector<AccuracyRow> rows;
  int64_t epochs = 0;
  int64_t image_size = 0;  // height and width
  double warmup_epochs = 0;
  // Where the warm-up begins. None: at a tenth of the row's rate.
  std::optional<double> warmup_rate;
};

// Names of the columns of Experiment::published in its rows: the top-1 error
// and its deviation over runs, both in percent; samples per second, and their
// ratio to those of dataparallel-256.
const std::vector<std::string>& accuracy_columns();

// ResNet-101 on ImageNet as in torchgpipe's benchmark resnet101-accuracy (Kim
// et al., arXiv 2004.09910), with what its table compares pipelines with, and
// the AmoebaNet-B of GPipe's table 4 (arXiv 1811.06965). `small`: for a few CPU
// cores, with an eighth of each mini-batch, a hundredth of each rate and 4 to 8
// micro-batches.
AccuracyTable accuracy_table(bool small);

}  // namespace gpipe::benchmarks
