// Rows as the papers name them, without their figures.
#pragma once

#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// Of torchgpipe's tables and of GPipe's table 1: "baseline", the plain model,
// for 0 partitions, else "pipeline-4". All micro-batches but the last are
// recomputed.
Experiment pipeline_row(int64_t partitions, int64_t batch_size, int64_t chunks,
                        const std::vector<int64_t>& balance);

// Of GPipe's table 2: "n2m32", partitions and micro-batches. As in torchgpipe's
// table of the same, the micro-batch is recomputed where there is one, and else
// all but the last.
Experiment table_2_row(int64_t partitions, int64_t chunks);

// Of GPipe's table 3: "p100-n4", in 32 micro-batches, with speed-ups by
// "p100-n2".
Experiment table_3_row(int64_t partitions);

}  // namespace gpipe::benchmarks
