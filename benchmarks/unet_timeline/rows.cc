#include "benchmarks/unet_timeline/rows.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment/workloads.h"
#include "benchmarks/papers/unet_model.h"
#include "gpipe/base/text.h"

namespace gpipe::benchmarks {
namespace {

struct Case {
  std::string name;
  Mechanisms on;
  std::optional<double> torchgpipe_speed;  // samples/s
  std::optional<double> torchgpipe_gib;    // sum over all devices
};

const std::vector<Case>& cases() {
  // The booleans are in the order of Mechanisms: skips, copies, recompute,
  // order.
  static const auto* const cases = new std::vector<Case>{
      {"all on", {true, true, true, true}, 58.477, 23.5},
      {"no direct skips", {false, true, true, true}, 55.191, 30.0},
      {"no copy streams", {true, false, true, true}, {}, {}},
      {"no early recompute", {true, true, false, true}, {}, {}},
      {"no ordered backward", {true, true, true, false}, {}, {}},
      {"neither skips nor streams", {false, false, true, true}, 41.306, 19.1},
      {"nor order", {false, false, true, false}, 30.662, 52.2},
      {"all off", {false, false, false, false}, {}, {}}};
  return *cases;
}

std::optional<double> times(std::optional<double> value, double factor) {
  return value ? std::optional<double>(*value * factor) : std::nullopt;
}

std::vector<Experiment> experiments(int64_t batch_size, int64_t channels) {
  const double all_on = *cases().front().torchgpipe_speed;
  std::vector<Experiment> experiments;
  for (const Case& each : cases()) {
    Experiment& row = experiments.emplace_back();
    row.name = each.name;
    row.partitions = 4;
    row.batch_size = batch_size;
    row.chunks = 8;
    row.balance = {34, 76, 70, 61};
    row.published = {each.torchgpipe_speed,
                     times(each.torchgpipe_speed, 1 / all_on),
                     times(each.torchgpipe_gib, kGiB)};
    row.size = {5, channels};
  }
  return experiments;
}

Workload workload(int64_t pixels, int64_t batch_size, int64_t channels) {
  return with_rows(images_with_masks(pixels, Mask::kOnes),
                   experiments(batch_size, channels), {batch_size, 10, 1});
}

}  // namespace

Benchmark timeline_benchmark() {
  Benchmark benchmark;
  benchmark.program = {
      "unet_timeline",
      "samples per second of U-Net in four partitions, with direct skips, "
      "copy\n"
      "streams, early recomputes and ordered backwards switched off in turn, "
      "beside the\n"
      "published figures of torchgpipe. --mode=auto measures if there are "
      "four\n"
      "accelerators, and simulates otherwise.",
      {"--mode=simulate", "--mode=measure --epochs=16",
       "--mode=simulate --link_bandwidth=3e9 --timeline=/tmp/steps.svg"}};
  benchmark.title = "U-Net, what mechanisms are worth";
  benchmark.table_kind = TableKind::kTimeline;
  benchmark.size_column = kUnetSize;
  benchmark.published = {{"torchgpipe samples/s", Figure::kSpeed},
                         {"of its all on", Figure::kSpeedUp},
                         {"torchgpipe GiB", Figure::kTotalBytes}};
  benchmark.base = cases().front().name;
  benchmark.model = unet_of;
  benchmark.loss = mask_loss;
  benchmark.paper = workload(192, 128, 64);
  benchmark.small = workload(64, 32, 8);
  benchmark.notes = {
      "torchgpipe's figures are of 4 Tesla P40. Its rows switch on the "
      "dependency between backwards, then copy streams, then portals; its "
      "recomputes are always early."};
  return benchmark;
}

Mechanisms mechanisms_of(const Experiment& row) {
  for (const Case& each : cases()) {
    if (each.name == row.name) return each.on;
  }
  internal::refuse("'", row.name, "' is not a row of unet_timeline");
}

Experiment timeline_yardstick() {
  Experiment plain;
  plain.name = "the plain model";
  plain.batch_size = 40;
  plain.size = {5, 64};
  plain.published = {28.5};
  return plain;
}

}  // namespace gpipe::benchmarks
