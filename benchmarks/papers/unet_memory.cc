// The memory of U-Nets (B, C) that grow with the number of devices, as in
// torchgpipe's benchmark unet-memory.

#include "benchmarks/harness/run.h"
#include "benchmarks/papers/tables.h"

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(
      argc, argv, gpipe::benchmarks::unet_memory_benchmark());
}
