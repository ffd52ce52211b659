// The rows of torchgpipe's table about the gain from its mechanisms.
#pragma once

#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/unet_timeline/ablation.h"

namespace gpipe::benchmarks {

// Returns the benchmark of U-Net in four partitions. In its rows each mechanism
// (ablation.h) is switched off alone, and the sets of mechanisms of
// torchgpipe's benchmark unet-timeline are switched off together (Kim et al.,
// arXiv 2004.09910). The published columns are samples per second, their ratio
// to those of "all on", and the sum of the bytes of all devices. An epoch is
// one step.
Benchmark timeline_benchmark();

// Returns the mechanisms that are switched on in a row of timeline_benchmark().
// Throws std::invalid_argument for another row.
Mechanisms mechanisms_of(const Experiment& row);

// Returns the plain model at the published size, with its samples per second on
// one of torchgpipe's devices (from unet-speed). A simulation computes the
// speed of the devices from this experiment, so that no row of the table is
// fitted.
Experiment timeline_yardstick();

}  // namespace gpipe::benchmarks
