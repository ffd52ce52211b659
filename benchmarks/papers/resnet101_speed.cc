// The training speed of ResNet-101 for numbers of partitions: figure 3(b) of
// GPipe (arXiv 1811.06965v4), and torchgpipe's table for that figure.

#include "benchmarks/harness/run.h"
#include "benchmarks/papers/tables.h"

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(
      argc, argv, gpipe::benchmarks::resnet101_speed_benchmark());
}
