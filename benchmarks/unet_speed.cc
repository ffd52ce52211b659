// Training speed of U-Net against the number of partitions, as in torchgpipe's
// benchmark unet-speed: a model with long skip connections.

#include "benchmarks/harness/run.h"
#include "benchmarks/unet_speed_rows.h"

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(
      argc, argv, gpipe::benchmarks::unet_speed_benchmark());
}
