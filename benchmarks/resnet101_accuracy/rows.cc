#include "benchmarks/resnet101_accuracy/rows.h"

#include <algorithm>

namespace gpipe::benchmarks {
namespace {

// The number of images in a mini-batch of "1k".
constexpr int64_t kK = 1024;

// The published speed: torchgpipe's samples per second, and the speed-up
// relative to dataparallel-256.
struct Speed {
  std::optional<double> samples_per_second, speed_up;
};

// The published top-1 error and its deviation, in percent.
struct Error {
  std::optional<double> percent, deviation;
};

AccuracyRow row(const std::string& name, std::optional<int64_t> devices,
                int64_t batch_size, double rate, Error error, Speed speed) {
  AccuracyRow row;
  row.experiment.name = name;
  row.experiment.batch_size = batch_size;
  row.experiment.published = {error.percent, error.deviation,
                              speed.samples_per_second, speed.speed_up};
  row.devices = devices;
  row.rate = rate;
  return row;
}

// Returns a row for the plain model. torchgpipe's code has such a row, its
// table does not.
AccuracyRow naive(int64_t batch_size, double rate) {
  return row("naive-" + std::to_string(batch_size), /*devices=*/std::nullopt,
             batch_size, rate, {}, {});
}

AccuracyRow pipeline(const std::string& name, int64_t batch_size, double rate,
                     int64_t chunks, const std::vector<int64_t>& balance,
                     Error error, Speed speed) {
  const auto partitions = static_cast<int64_t>(balance.size());
  AccuracyRow pipeline = row(name, partitions, batch_size, rate, error, speed);
  pipeline.experiment.partitions = partitions;
  pipeline.experiment.chunks = chunks;
  pipeline.experiment.balance = balance;
  return pipeline;
}

// Returns a row for copies of the model, measured by torchgpipe's authors or by
// Goyal et al. (arXiv 1706.02677).
AccuracyRow data_parallel(const std::string& name, int64_t devices,
                          int64_t batch_size, double rate, Error error,
                          Speed speed) {
  AccuracyRow copies = row(name, devices, batch_size, rate, error, speed);
  copies.left_out = "not run: copies of the model on " +
                    std::to_string(devices) + " devices, not a pipeline";
  return copies;
}

// Returns a row of GPipe's table 4: AmoebaNet-B (18, 512) on images of 480 x
// 480 in 4 partitions, trained for ImageNet and then for another data set. The
// paper gives neither mini-batch nor learning rate.
AccuracyRow amoebanet(const std::string& set, double accuracy_percent) {
  AccuracyRow row;
  row.experiment.name = "amoebanet-b-" + set;
  row.experiment.published = {100 - accuracy_percent, {}, {}, {}};
  if (set == "imagenet") row.devices = 4;
  row.left_out = "not run: AmoebaNet-B; this program trains ResNet-101";
  return row;
}

std::vector<AccuracyRow> rows() {
  const std::vector<int64_t> eight{26, 22, 33, 44, 44, 66, 66, 69};
  return {
      data_parallel("reference-256", 8, 256, 0.1, {22.08, 0.06}, {}),
      data_parallel("reference-8k", 256, 8 * kK, 3.2, {22.36, 0.09}, {}),
      naive(128, 0.1),
      data_parallel("dataparallel-256", 2, 256, 0.1, {22.02, 0.11},
                    {180.344, 1}),
      data_parallel("dataparallel-1k", 8, kK, 0.4, {22.04, 0.24},
                    {606.916, 3.365}),
      data_parallel("dataparallel-4k", 8, 4 * kK, 1.6, {}, {}),
      pipeline("pipeline-256", 256, 0.1, 4, {140, 230}, {21.99, 0.13},
               {117.432, 0.651}),
      pipeline("pipeline-1k", kK, 0.4, 64, eight, {22.24, 0.19},
               {294.739, 1.634}),
      pipeline("pipeline-4k", 4 * kK, 1.6, 64, eight, {22.13, 0.09},
               {378.746, 2.100}),
      amoebanet("imagenet", 84.4),
      amoebanet("cifar-10", 99.0),
      amoebanet("cifar-100", 91.3),
      amoebanet("stanford-cars", 94.6),
      amoebanet("oxford-pets", 95.9),
      amoebanet("food-101", 93.0),
      amoebanet("fgvc-aircraft", 92.7),
      amoebanet("birdsnap", 83.6),
  };
}

}  // namespace

const std::vector<std::string>& accuracy_columns() {
  static const auto* const columns =
      new std::vector<std::string>{"published top-1 error %", "its deviation",
                                   "published samples/s", "published speed-up"};
  return *columns;
}

AccuracyTable accuracy_table(bool small) {
  AccuracyTable table;
  table.rows = rows();
  table.epochs = 90;
  table.image_size = 224;
  table.warmup_epochs = 4;
  table.warmup_rate = 0.1;
  if (!small) return table;

  table.epochs = 6;
  table.image_size = 32;
  table.warmup_epochs = 1;
  table.warmup_rate.reset();
  for (AccuracyRow& row : table.rows) {
    if (!row.left_out.empty()) continue;
    row.experiment.batch_size /= 8;
    row.experiment.chunks = std::min<int64_t>(8, row.experiment.chunks);
    row.experiment.balance.clear();
    row.rate = *row.rate / 100;
  }
  return table;
}

}  // namespace gpipe::benchmarks
