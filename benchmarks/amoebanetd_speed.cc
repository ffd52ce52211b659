// Training speed of AmoebaNet-D against the number of partitions (n) and of
// micro-batches (m): Tables 2 and 3 of GPipe (arXiv 1811.06965), and
// torchgpipe's table of the former.

#include "benchmarks/amoebanetd_speed_rows.h"
#include "benchmarks/harness/run.h"

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(
      argc, argv, gpipe::benchmarks::amoebanetd_speed_benchmark());
}
