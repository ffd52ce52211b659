// Rows with the names of the papers, without published figures.
#pragma once

#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// Returns a row of torchgpipe's tables or of GPipe's table 1. Its name is
// "baseline" for 0 partitions (the plain model), otherwise "pipeline-4". All
// micro-batches but the last are recomputed.
Experiment pipeline_row(int64_t partitions, int64_t batch_size, int64_t chunks,
                        const std::vector<int64_t>& balance);

// Returns a row of GPipe's table 2. Its name consists of the partitions and
// micro-batches: "n2m32". As in torchgpipe's version of the table, a single
// micro-batch is recomputed; of several, all but the last are.
Experiment table_2_row(int64_t partitions, int64_t chunks);

// Returns a row of GPipe's table 3: "p100-n4", in 32 micro-batches. Its
// speed-up is relative to "p100-n2".
Experiment table_3_row(int64_t partitions);

}  // namespace gpipe::benchmarks
