// The training speed of Transformers for numbers of partitions (n) and
// micro-batches (m): tables 2 and 3 of GPipe (arXiv 1811.06965).

#include "benchmarks/harness/run.h"
#include "benchmarks/papers/tables.h"

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(
      argc, argv, gpipe::benchmarks::transformer_speed_benchmark());
}
