// How large an AmoebaNet-D (L, D) fits into how many devices: Table 1 of GPipe
// (arXiv 1811.06965), and torchgpipe's table of the same.

#include "benchmarks/amoebanetd_memory_rows.h"
#include "benchmarks/harness/run.h"

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(
      argc, argv, gpipe::benchmarks::amoebanetd_memory_benchmark());
}
