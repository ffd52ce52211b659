#include "benchmarks/paper_rows.h"

#include <string>

namespace gpipe::benchmarks {

Experiment pipeline_row(int64_t partitions, int64_t batch_size, int64_t chunks,
                        const std::vector<int64_t>& balance) {
  Experiment row;
  row.name =
      partitions == 0 ? "baseline" : "pipeline-" + std::to_string(partitions);
  row.partitions = partitions;
  row.batch_size = batch_size;
  row.chunks = chunks;
  row.balance = balance;
  return row;
}

Experiment table_2_row(int64_t partitions, int64_t chunks) {
  Experiment row;
  row.name = "n" + std::to_string(partitions) + "m" + std::to_string(chunks);
  row.partitions = partitions;
  row.chunks = chunks;
  row.checkpoint = chunks == 1 ? Checkpoint::kAlways : Checkpoint::kExceptLast;
  return row;
}

Experiment table_3_row(int64_t partitions) {
  Experiment row;
  row.name = "p100-n" + std::to_string(partitions);
  row.partitions = partitions;
  row.chunks = 32;
  row.base = "p100-n2";
  return row;
}

}  // namespace gpipe::benchmarks
