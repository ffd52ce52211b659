// The rows of torchgpipe's table on what its mechanisms are worth.
#pragma once

#include "benchmarks/harness/ablation.h"
#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// U-Net in four partitions, with each of the mechanisms (ablation.h) switched
// off, and with the sets of them of torchgpipe's benchmark unet-timeline (Kim
// et al., arXiv 2004.09910). Published: samples per second, their ratio to
// those of "all on", bytes of all devices together. An epoch is a step.
Benchmark timeline_benchmark();

// What is on in a row of it. std::invalid_argument for another row.
Mechanisms mechanisms_of(const Experiment& row);

// The plain model at the published size, with the samples per second that it
// has on one of torchgpipe's devices (its unet-speed). A simulation takes the
// devices' speed from here, so that no row of the table is fitted.
Experiment timeline_yardstick();

}  // namespace gpipe::benchmarks
