// The memory of AmoebaNets-D (L, D) that grow with the number of devices: table
// 1 of GPipe (arXiv 1811.06965) and torchgpipe's version of that table.

#include "benchmarks/harness/run.h"
#include "benchmarks/papers/tables.h"

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(
      argc, argv, gpipe::benchmarks::amoebanetd_memory_benchmark());
}
