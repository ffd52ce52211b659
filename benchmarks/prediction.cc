// Compares predicted and measured steps. gpipe::balancing::plan() predicts the
// seconds. A run of the same pipeline on the meta device predicts the bytes.
//
//   ./bazelw run //benchmarks:prediction
//
// Each partition has one thread. The machine should have two cores: one for
// each of 2 partitions, shared by 4 partitions.
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "balancing/balancing.h"
#include "balancing/plan.h"
#include "gpipe/gpipe.h"
#include "gpipe/instruments/counting_allocator.h"
#include "gpipe/meta.h"
#include "gpipe/meta/ledger.h"
#include "models/amoebanet.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace {

using gpipe::instruments::CountingAllocator;
using torch::Tensor;
using torch::nn::Sequential;

struct TableKind {
  std::string name;
  std::function<Sequential()> model;
  std::function<Tensor()> input;
};

void step(gpipe::GPipe& pipeline, const Tensor& input) {
  pipeline->zero_grad();
  const Tensor output = pipeline->forward(input);
  output.backward(torch::ones_like(output));
}

double median_seconds(gpipe::GPipe& pipeline, const Tensor& input) {
  std::vector<double> seconds;
  for (int k = 0; k < 9; ++k) {
    const auto start = std::chrono::steady_clock::now();
    step(pipeline, input);
    const std::chrono::duration<double> passed =
        std::chrono::steady_clock::now() - start;
    if (k >= 2) seconds.push_back(passed.count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

// Returns the peak of a step in bytes, without the bytes held before the step.
int64_t counted_peak(gpipe::GPipe& pipeline, const Tensor& input) {
  pipeline->zero_grad();
  const int64_t before = gpipe::instruments::CountingAllocator::live_bytes();
  gpipe::instruments::CountingAllocator::reset_peak();
  step(pipeline, input);
  return gpipe::instruments::CountingAllocator::peak_bytes() - before;
}

// Returns the peak of a step on the meta device, in bytes.
int64_t foretold_peak(const TableKind& subject,
                      const gpipe::GPipeOptions& options, const Tensor& input) {
  auto on_meta = options;
  on_meta.devices(std::vector<torch::Device>(options.balance().size(),
                                             torch::Device(torch::kMeta)));
  gpipe::GPipe pipeline = [&] {
    const gpipe::MetaGuard meta;
    return gpipe::GPipe(subject.model(), on_meta);
  }();
  const gpipe::MetaLedger ledger;
  step(pipeline,
       torch::empty(input.sizes(), input.options().device(torch::kMeta)));
  return ledger.peak_bytes();
}

void run(const TableKind& subject, int64_t partitions) {
  const Sequential model = subject.model();
  const Tensor input = subject.input();
  const auto plan = gpipe::balancing::plan(
      model, input, std::vector<gpipe::balancing::PlanDevice>(partitions),
      gpipe::balancing::PlanOptions()
          .chunks({2 * partitions})
          .checkpoints({gpipe::Checkpoint::kExceptLast})
          .profile(gpipe::balancing::TimeOptions().timeout(2)));
  gpipe::GPipe pipeline(model, plan.options());
  const double seconds = median_seconds(pipeline, input);
  const auto counted = static_cast<double>(counted_peak(pipeline, input));
  const auto foretold =
      static_cast<double>(foretold_peak(subject, plan.options(), input));
  std::printf(
      "| %s | %lld | %.1f | %.1f | %+.1f %% | %.2f | %.2f | %+.1f %% |\n",
      subject.name.c_str(), static_cast<long long>(partitions),
      1e3 * plan.step_seconds, 1e3 * seconds,
      100 * (plan.step_seconds / seconds - 1), foretold / (1 << 20),
      counted / (1 << 20), 100 * (foretold / counted - 1));
  std::fflush(stdout);
}

// Profiles the model twice, cuts it by each profile, and prints how good the
// first cut is for the second profile.
void repeat(const TableKind& subject, int64_t partitions) {
  namespace balancing = gpipe::balancing;
  const Sequential model = subject.model();
  const Tensor input = subject.input().chunk(4)[0];
  const auto profile = [&] {
    return balancing::totals(balancing::profile_times(
        model, input, balancing::TimeOptions().timeout(2)));
  };
  const auto first = profile(), second = profile();
  const auto cut = balancing::balance_cost(first, partitions);
  const auto again = balancing::balance_cost(second, partitions);
  std::printf("| %s | %lld | %s | %+.1f %% |\n", subject.name.c_str(),
              static_cast<long long>(partitions), cut == again ? "yes" : "no",
              100 * (balancing::bottleneck(second, cut) /
                         balancing::bottleneck(second, again) -
                     1));
  std::fflush(stdout);
}

}  // namespace

int main() {
  using namespace gpipe::models;  // NOLINT: the models' names
  gpipe::instruments::CountingAllocator::install();
  torch::manual_seed(0);
  const std::vector<TableKind> subjects = {
      {"ResNet-101, 64 x 64", [] { return resnet101(10); },
       [] {
         return torch::rand({32, 3, 64, 64});
       }},
      {"AmoebaNet-D (6, 64), 64 x 64", [] { return amoebanetd(10, 6, 64); },
       [] {
         return torch::rand({32, 3, 64, 64});
       }},
      {"U-Net (2, 16), 64 x 64", [] { return unet(5, 2, 16); },
       [] {
         return torch::rand({32, 3, 64, 64});
       }},
      {"Transformer (4, 128), 64 tokens",
       [] {
         return transformer(TransformerOptions()
                                .num_layers(4)
                                .width(128)
                                .feed_forward(512)
                                .heads(4)
                                .vocabulary(100)
                                .sequence(64));
       },
       [] {
         return torch::randint(100, {32, 64}, torch::kLong);
       }},
  };
  std::puts(
      "| model | partitions | ms predicted | measured | error | MiB predicted "
      "| "
      "counted | error |\n| --- | --- | --- | --- | --- | --- | --- | --- |");
  for (const int64_t partitions : {2, 4}) {
    for (const TableKind& subject : subjects) run(subject, partitions);
  }
  std::puts(
      "\n| model | partitions | same cut by a second profile | the first cut "
      "by "
      "the second profile, over its best |\n| --- | --- | --- | --- |");
  at::set_num_threads(1);
  for (const int64_t partitions : {2, 4}) {
    for (const TableKind& subject : subjects) repeat(subject, partitions);
  }
}
