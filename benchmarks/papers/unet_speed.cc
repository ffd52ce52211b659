// The training speed of U-Net, a model with long skip connections, for numbers
// of partitions, as in torchgpipe's benchmark unet-speed.

#include "benchmarks/harness/run.h"
#include "benchmarks/papers/tables.h"

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(
      argc, argv, gpipe::benchmarks::unet_speed_benchmark());
}
