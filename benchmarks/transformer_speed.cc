// Training speed of Transformers against the number of partitions (n) and of
// micro-batches (m): Tables 2 and 3 of GPipe (arXiv 1811.06965).

#include "benchmarks/harness/run.h"
#include "benchmarks/transformer_speed_rows.h"

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(
      argc, argv, gpipe::benchmarks::transformer_speed_benchmark());
}
