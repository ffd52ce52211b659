// The memory of Transformers that grow with the number of devices: table 1 of
// GPipe (arXiv 1811.06965), up to 83.9 billion parameters on 128 devices.

#include "benchmarks/harness/run.h"
#include "benchmarks/papers/tables.h"

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(
      argc, argv, gpipe::benchmarks::transformer_memory_benchmark());
}
