// The training speed of AmoebaNet-D for numbers of partitions (n) and
// micro-batches (m): tables 2 and 3 of GPipe (arXiv 1811.06965), and
// torchgpipe's version of table 2.

#include "benchmarks/harness/run.h"
#include "benchmarks/papers/tables.h"

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(
      argc, argv, gpipe::benchmarks::amoebanetd_speed_benchmark());
}
