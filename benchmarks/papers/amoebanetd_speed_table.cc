#include <cstdint>
#include <optional>
#include <vector>

#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/harness/experiment/workloads.h"
#include "benchmarks/papers/amoebanetd_model.h"
#include "benchmarks/papers/tables.h"

namespace gpipe::benchmarks {
namespace {

// Returns a row of table 2 with its published figures: torchgpipe's samples per
// second (8 Tesla P40) and speed-up, and GPipe's speed-up (TPUs), both relative
// to n2m1.
Experiment table_2(int64_t partitions, int64_t chunks, int64_t batch_size,
                   const std::vector<int64_t>& balance, double torchgpipe,
                   double torchgpipe_speed_up, double gpipe_speed_up) {
  Experiment row = table_2_row(partitions, chunks);
  row.batch_size = batch_size;
  row.balance = balance;
  row.published = {torchgpipe, torchgpipe_speed_up, gpipe_speed_up};
  row.size = {18, 256};
  return row;
}

// Returns a row of table 3 with its published figure: GPipe's speed-up relative
// to two P100s, on one host without NVLink. The paper gives neither mini-batch
// nor balance: these are those of torchgpipe's rows with 32 micro-batches.
Experiment table_3(int64_t partitions, int64_t batch_size,
                   const std::vector<int64_t>& balance, double gpipe_speed_up) {
  Experiment row = table_3_row(partitions);
  row.batch_size = batch_size;
  row.balance = balance;
  row.published = {std::nullopt, std::nullopt, gpipe_speed_up};
  row.size = {18, 128};
  return row;
}

std::vector<Experiment> experiments() {
  const std::vector<int64_t> two{9, 15}, four{3, 6, 7, 8},
      eight{2, 2, 2, 3, 3, 4, 4, 4};
  return {
      table_2(2, 1, 96, {7, 17}, 26.733, 1, 1),
      table_2(2, 4, 256, two, 41.133, 1.539, 1.07),
      table_2(2, 32, 1280, two, 47.386, 1.773, 1.21),
      table_2(4, 1, 160, {3, 4, 5, 12}, 26.827, 1.004, 1.13),
      table_2(4, 4, 360, four, 44.543, 1.666, 1.26),
      table_2(4, 32, 1152, four, 72.412, 2.709, 1.84),
      table_2(8, 1, 196, {2, 2, 2, 2, 2, 3, 4, 7}, 24.918, 0.932, 1.38),
      table_2(8, 4, 480, eight, 70.065, 2.621, 1.72),
      table_2(8, 32, 1280, eight, 132.413, 4.953, 3.48),
      table_3(2, 1280, two, 1),
      table_3(4, 1152, four, 1.7),
      table_3(8, 1280, eight, 2.7),
  };
}

// Returns the rows at reduced size, for a few CPU cores: the same mini-batch
// for all rows, cut by measured time. The numbers of micro-batches stay, so the
// smallest micro-batch has one sample.
std::vector<Experiment> small_experiments() {
  auto experiments = gpipe::benchmarks::experiments();
  for (auto& experiment : experiments) {
    experiment.batch_size = 32;
    experiment.balance.clear();
    experiment.size = {6, experiment.base.empty() ? 32 : 16};
  }
  return experiments;
}

}  // namespace

Benchmark amoebanetd_speed_benchmark() {
  Benchmark benchmark;
  benchmark.program = {
      "amoebanetd_speed",
      "samples per second of training AmoebaNet-D\n(plain SGD, cross entropy) "
      "with n partitions and m micro-batches (n2m32), beside the\npublished "
      "figures of GPipe (tables 2 and 3) and torchgpipe.",
      {"", "--experiment=n2m1,n2m4,n2m32", "--mode=simulate --format=markdown",
       "--mode=simulate --device_speed=1 --link_bandwidth=50e9",
       "--experiment=n2m1,n2m32 --same_batch --control"}};
  benchmark.title = "AmoebaNet-D, training speed";
  benchmark.size_column = kAmoebaNetSize;
  benchmark.base = "n2m1";
  benchmark.published = {{"torchgpipe samples/s", Figure::kSpeed},
                         {"torchgpipe speed-up", Figure::kSpeedUp},
                         {"GPipe speed-up", Figure::kSpeedUp}};
  benchmark.notes = {
      "Speed-ups are relative to n2m1, in the rows p100 relative to p100-n2. "
      "torchgpipe's figures are of 8 Tesla P40, GPipe's of TPUs and of P100s "
      "without NVLink."};
  benchmark.model = amoebanetd_of;
  benchmark.loss = cross_entropy;

  benchmark.paper = with_rows(images_of_classes(224, kImageNetClasses),
                              experiments(), {10000, 10, 1});

  benchmark.small = with_rows(images_of_classes(64, kImageNetClasses),
                              small_experiments(), {64, 4, 1});
  return benchmark;
}

}  // namespace gpipe::benchmarks
