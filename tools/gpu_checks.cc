#include "tools/gpu_checks.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "gpipe/base/devices.h"
#include "gpipe/distributed/error.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"

namespace gpipe::tools {

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return output.sub(target.to(output.device())).pow(2).mean();
}

torch::nn::Sequential wide_layers(int64_t partitions, int64_t width) {
  torch::nn::Sequential layers;
  for (int64_t j = 0; j < partitions; ++j) {
    layers->push_back(torch::nn::Linear(j == 0 ? 1 : width, width));
    layers->push_back(torch::nn::Tanh());
    layers->push_back(torch::nn::Linear(width, j + 1 < partitions ? width : 1));
  }
  return layers;
}

std::vector<at::Tensor> results_of_step(GPipe& pipeline,
                                        const at::Tensor& input,
                                        const at::Tensor& target,
                                        const Schedule& schedule,
                                        uint64_t seed) {
  torch::manual_seed(seed);
  const StepResult step = pipeline->train_step(input.to(pipeline->device()),
                                               target, squared_error, schedule);
  std::vector<at::Tensor> results{step.loss.detach().to(torch::kCPU)};
  for (const auto& parameter : pipeline->parameters()) {
    results.push_back(parameter.grad().to(torch::kCPU, parameter.scalar_type(),
                                          /*non_blocking=*/false,
                                          /*copy=*/true));
  }
  pipeline->zero_grad();
  return results;
}

double largest_difference(const std::vector<at::Tensor>& left,
                          const std::vector<at::Tensor>& right) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (left.size() != right.size()) return kInfinity;
  double largest = 0;
  for (std::size_t k = 0; k < left.size(); ++k) {
    if (left[k].sizes() != right[k].sizes()) return kInfinity;
    if (!left[k].isfinite().all().item<bool>() ||
        !right[k].isfinite().all().item<bool>()) {
      return kInfinity;
    }
    if (left[k].equal(right[k])) continue;
    const double difference = left[k].sub(right[k]).abs().max().item<double>();
    const double scale = right[k].abs().max().item<double>();
    largest = std::max(largest, scale > 0 ? difference / scale : kInfinity);
  }
  return largest;
}

namespace {

using Results = std::vector<at::Tensor>;

// Draws the lengths of random delays. Thread-safe.
class RandomDelays {
 public:
  // `longest`: the largest number of products; 0 turns delays off.
  void restart(uint64_t seed, int longest) {
    seed_ = seed;
    longest_ = longest;
    calls_ = 0;
  }

  // Occupies the current stream of the device of `like` with 0 to `longest`
  // products of matrices.
  void occupy(const at::Tensor& like) {
    const uint64_t call = calls_++;
    if (longest_ == 0) return;
    std::mt19937_64 generator(seed_ * 1000003 + call);
    const int products =
        std::uniform_int_distribution<int>(0, longest_)(generator);
    if (products == 0) return;
    const at::NoGradGuard no_grad;
    const auto matrix = torch::zeros({kSize, kSize}, like.options());
    for (int k = 0; k < products; ++k) matrix.mm(matrix);
  }

 private:
  static constexpr int64_t kSize = 256;
  std::atomic<uint64_t> seed_{0}, calls_{0};
  std::atomic<int> longest_{0};
};

RandomDelays& random_delays() {
  static RandomDelays delays;
  return delays;
}

// An identity that occupies its stream in forward and in backward.
struct SlowIdentity : torch::autograd::Function<SlowIdentity> {
  static at::Tensor forward(torch::autograd::AutogradContext*,
                            const at::Tensor& input) {
    random_delays().occupy(input);
    return input.clone();
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext*, torch::autograd::tensor_list grads) {
    random_delays().occupy(grads[0]);
    return {grads[0].clone()};
  }
};

struct SlowLayerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    return SlowIdentity::apply(input);
  }
};
TORCH_MODULE(SlowLayer);

// An LSTM of two layers with dropout between them, which returns its output
// sequence only.
struct DropoutLstmImpl : torch::nn::Module {
  explicit DropoutLstmImpl(int64_t size)
      : lstm(register_module("lstm",
                             torch::nn::LSTM(torch::nn::LSTMOptions(size, size)
                                                 .num_layers(2)
                                                 .dropout(0.5)
                                                 .batch_first(true)))) {}
  at::Tensor forward(const at::Tensor& input) {
    return std::get<0>(lstm->forward(input));
  }
  torch::nn::LSTM lstm;
};
TORCH_MODULE(DropoutLstm);

Results train_lstm(const std::vector<c10::Device>& devices,
                   Checkpoint checkpoint) {
  constexpr int64_t kSize = 64, kLength = 12, kRows = 8, kChunks = 4;
  torch::manual_seed(1);
  torch::nn::Sequential layers;
  for (std::size_t j = 0; j < devices.size(); ++j) {
    layers->push_back(DropoutLstm(kSize));
  }
  GPipe pipeline(layers, GPipeOptions(std::vector<int64_t>(devices.size(), 1))
                             .devices(devices)
                             .checkpoint(checkpoint));
  const auto input = torch::randn({kChunks * kRows, kLength, kSize});
  return results_of_step(
      pipeline, input, torch::zeros_like(input),
      one_forward_one_backward(static_cast<int>(devices.size()), kChunks),
      /*seed=*/2);
}

}  // namespace

CheckResult check_lstm(const std::vector<c10::Device>& devices) {
  // A wrong dropout mask changes gradients by their own size.
  constexpr double kRounding = 1e-4;
  const Results never = train_lstm(devices, Checkpoint::kNever);
  const double again =
      largest_difference(train_lstm(devices, Checkpoint::kNever), never);
  const double always =
      largest_difference(train_lstm(devices, Checkpoint::kAlways), never);
  std::ostringstream text;
  text << "largest relative difference of two runs without checkpointing: "
       << again << "\nlargest relative difference of checkpointing always and "
       << "never: " << always
       << (always <= kRounding ? ", at most " : ", above ") << kRounding;
  return {always <= kRounding ? CheckOutcome::kPassed : CheckOutcome::kFailed,
          text.str()};
}

CheckResult check_order(const std::vector<c10::Device>& devices,
                        int64_t rounds) {
  constexpr int64_t kWidth = 64, kRows = 16, kChunks = 8;
  constexpr int kLongest = 40;
  const auto partitions = static_cast<int64_t>(devices.size());
  torch::manual_seed(3);
  torch::nn::Sequential layers;
  for (int64_t j = 0; j < partitions; ++j) {
    layers->push_back(torch::nn::Linear(kWidth, kWidth));
    layers->push_back(SlowLayer());
  }
  GPipe pipeline(layers, GPipeOptions(std::vector<int64_t>(devices.size(), 2))
                             .devices(devices)
                             .checkpoint(Checkpoint::kExceptLast));
  const auto input = torch::randn({kChunks * kRows, kWidth});
  std::ostringstream text;
  for (const char* name : {"fill-drain", "1f1b", "zb-h1"}) {
    const Schedule schedule = named_schedule(name, static_cast<int>(partitions),
                                             kChunks, /*stages_per_rank=*/1);
    random_delays().restart(0, 0);
    const Results expected =
        results_of_step(pipeline, input, input, schedule, 0);
    for (int64_t round = 1; round <= rounds; ++round) {
      random_delays().restart(static_cast<uint64_t>(round), kLongest);
      const double difference = largest_difference(
          results_of_step(pipeline, input, input, schedule, 0), expected);
      if (difference == 0) continue;
      text << name << ", round " << round << " with random delays: largest "
           << "relative difference " << difference;
      return {CheckOutcome::kFailed, text.str()};
    }
    text << name << ": " << rounds << " rounds with equal bits\n";
  }
  text << "random delays change no bit";
  return {CheckOutcome::kPassed, text.str()};
}

namespace {

constexpr auto kAll =
    static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
constexpr double kAllowedGrowth = 1.25;
constexpr int64_t kFewChunks = 8, kManyChunks = 64;

GPipe wide_pipeline(const std::vector<c10::Device>& devices, int64_t width) {
  torch::manual_seed(0);
  const auto partitions = static_cast<int64_t>(devices.size());
  return GPipe(wide_layers(partitions, width),
               GPipeOptions(std::vector<int64_t>(devices.size(), 3))
                   .devices(devices)
                   .checkpoint(Checkpoint::kNever));
}

bool has_cpu(const std::vector<c10::Device>& devices) {
  return std::any_of(devices.begin(), devices.end(),
                     [](const auto& device) { return device.is_cpu(); });
}

// Runs steps whose micro-batches have more rows each time, so that cached
// blocks of earlier steps do not fit.
Results growing_steps(GPipe& pipeline, int64_t rows) {
  constexpr int64_t kChunks = 4, kSteps = 6;
  const auto schedule = one_forward_one_backward(
      static_cast<int>(pipeline->devices().size()), kChunks);
  Results all;
  for (int64_t step = 1; step <= kSteps; ++step) {
    torch::manual_seed(static_cast<uint64_t>(step));
    const auto input = torch::rand({kChunks * rows * step / kSteps, 1});
    for (auto& result : results_of_step(pipeline, input, input, schedule, 0)) {
      all.push_back(std::move(result));
    }
  }
  return all;
}

// Allocates memory until `free` bytes are left on the device. Returns the
// tensor that holds the memory; undefined if less than `free` is left already.
at::Tensor fill(const c10::Device& device, int64_t free) {
  const auto now = static_cast<int64_t>(
      at::accelerator::getMemoryInfo(device.index()).first);
  if (now <= free) return {};
  return torch::empty({now - free},
                      torch::TensorOptions(torch::kByte).device(device));
}

int64_t retries(const std::vector<c10::Device>& devices) {
  int64_t sum = 0;
  for (const auto& device : devices) {
    sum += at::accelerator::getDeviceStats(device.index()).num_alloc_retries;
  }
  return sum;
}

}  // namespace

std::vector<PeakBytes> peaks_of_step(const std::vector<c10::Device>& devices,
                                     int64_t chunks, int64_t rows,
                                     int64_t width) {
  GPipe pipeline = wide_pipeline(devices, width);
  const auto schedule = one_forward_one_backward(
      static_cast<int>(devices.size()), static_cast<int>(chunks));
  const auto input = torch::rand({chunks * rows, 1}).to(devices.front());
  const auto target = torch::rand({chunks * rows, 1}).to(devices.back());
  const auto step = [&] {
    pipeline->train_step(input, target, squared_error, schedule);
    pipeline->zero_grad();
    synchronize(devices);
  };
  step();  // makes the allocations that stay, such as workspaces of cuBLAS
  at::accelerator::emptyCache();
  std::vector<PeakBytes> peaks;
  for (const auto& device : each_once(devices)) {
    const auto stats = at::accelerator::getDeviceStats(device.index());
    peaks.push_back({device, -stats.active_bytes[kAll].current,
                     -stats.allocated_bytes[kAll].current, 0});
    at::accelerator::resetPeakStats(device.index());
  }
  for (int k = 0; k < 3; ++k) step();
  for (auto& peak : peaks) {
    const auto stats = at::accelerator::getDeviceStats(peak.device.index());
    peak.active += stats.active_bytes[kAll].peak;
    peak.allocated += stats.allocated_bytes[kAll].peak;
    peak.reserved = stats.reserved_bytes[kAll].peak;
  }
  return peaks;
}

CheckResult compare_peaks(const std::vector<PeakBytes>& few,
                          const std::vector<PeakBytes>& many) {
  TORCH_CHECK_VALUE(few.size() == many.size(), "peaks of ", few.size(),
                    " devices and of ", many.size(),
                    ": measure both on the same devices");
  std::ostringstream text;
  bool grows = false, counted = true;
  for (std::size_t k = 0; k < few.size(); ++k) {
    const auto line = [&](const char* name, int64_t before, int64_t after) {
      text << few[k].device << " " << name << ": " << before << " bytes, "
           << after << " bytes\n";
      return static_cast<double>(after) >
             kAllowedGrowth * static_cast<double>(before);
    };
    // Every allocated byte is active, unless the allocator does not count.
    counted = counted && few[k].active >= few[k].allocated &&
              many[k].active >= many[k].allocated;
    const bool active = line("active", few[k].active, many[k].active);
    const bool allocated =
        line("allocated", few[k].allocated, many[k].allocated);
    line("reserved", few[k].reserved, many[k].reserved);
    grows = grows || active || allocated;
  }
  if (!counted) {
    text << "the allocator of these devices does not count active bytes";
    return {CheckOutcome::kNotPossible, text.str()};
  }
  text << "peaks of active and allocated bytes "
       << (grows ? "grow with the number of micro-batches by more than "
                 : "grow by at most ")
       << "a quarter";
  return {grows ? CheckOutcome::kFailed : CheckOutcome::kPassed, text.str()};
}

CheckResult check_memory(const std::vector<c10::Device>& devices, int64_t rows,
                         int64_t width) {
  if (has_cpu(devices)) {
    return {CheckOutcome::kNotPossible,
            "a CPU has no allocator that counts active bytes"};
  }
  const auto few = peaks_of_step(devices, kFewChunks, rows, width);
  const auto many = peaks_of_step(devices, kManyChunks, rows, width);
  CheckResult result = compare_peaks(few, many);
  result.text =
      "Peaks of a 1F1B step with 8 and with 64 micro-batches:\n" + result.text;
  return result;
}

CheckResult check_near_full(const std::vector<c10::Device>& devices,
                            int64_t rows, int64_t width) {
  if (has_cpu(devices)) {
    return {CheckOutcome::kNotPossible,
            "a CPU has no limit of memory to reach"};
  }
  GPipe pipeline = wide_pipeline(devices, width);
  const auto unique = each_once(devices);
  for (const auto& device : unique) {
    at::accelerator::resetPeakStats(device.index());
  }
  const Results expected = growing_steps(pipeline, rows);
  std::vector<int64_t> needed;
  for (const auto& device : unique) {
    const auto stats = at::accelerator::getDeviceStats(device.index());
    needed.push_back(stats.allocated_bytes[kAll].peak -
                     stats.allocated_bytes[kAll].current);
  }
  std::ostringstream text;
  bool reached = false;
  for (const double share : {2.0, 1.6, 1.3, 1.15, 1.05}) {
    synchronize(devices);
    at::accelerator::emptyCache();
    std::vector<at::Tensor> fillers;
    for (std::size_t k = 0; k < unique.size(); ++k) {
      const auto free = share * static_cast<double>(needed[k]);
      fillers.push_back(fill(unique[k], static_cast<int64_t>(free)));
    }
    const int64_t before = retries(unique);
    text << share << " times the needed memory is free: ";
    try {
      const double difference =
          largest_difference(growing_steps(pipeline, rows), expected);
      const int64_t count = retries(unique) - before;
      text << count << " retries of the allocator, largest difference "
           << difference << "\n";
      if (difference != 0) {
        text << "gradients change when memory is short";
        return {CheckOutcome::kFailed, text.str()};
      }
      reached = reached || count > 0;
    } catch (const c10::OutOfMemoryError&) {
      text << "out of memory\n";
      pipeline->zero_grad();
    }
  }
  text << (reached ? "equal bits with retries of the allocator"
                   : "no completed step made the allocator retry");
  return {reached ? CheckOutcome::kPassed : CheckOutcome::kNotPossible,
          text.str()};
}

namespace {

constexpr int64_t kWidth = 256, kChunks = 4;

// An identity that ends the process in its first forward.
struct DyingLayerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    std::raise(SIGKILL);
    return input;
  }
};
TORCH_MODULE(DyingLayer);

// Returns three layers per rank, and one more at the end that ends the last
// rank if `dies`, and else does nothing.
torch::nn::Sequential layers_of(int ranks, bool dies) {
  torch::manual_seed(0);
  torch::nn::Sequential layers = wide_layers(ranks, kWidth);
  if (dies) layers->push_back(DyingLayer());
  return layers;
}

std::vector<int64_t> balance_of(int ranks, bool dies) {
  std::vector<int64_t> balance(static_cast<std::size_t>(ranks), 3);
  if (dies) ++balance.back();
  return balance;
}

// The pipeline over all ranks, and GPipe with all layers on this rank's device.
class Comparison {
 public:
  Comparison(const std::shared_ptr<World>& world, Transfers transfers,
             bool dies)
      : ranks_(world->size()),
        pipeline_(layers_of(ranks_, dies),
                  DistributedOptions(balance_of(ranks_, dies))
                      .transfers(transfers)
                      .threads_per_partition(1),
                  world),
        alone_(layers_of(ranks_, /*dies=*/false),
               GPipeOptions(balance_of(ranks_, /*dies=*/false))
                   .devices(std::vector<torch::Device>(
                       static_cast<std::size_t>(ranks_), pipeline_->device()))
                   .threads_per_partition(1)) {}

  // Runs a step of both. Returns whether the loss and the gradients of this
  // rank's parameters have equal bits.
  bool step(int64_t rows, int64_t seed) {
    const auto schedule = one_forward_one_backward(ranks_, kChunks);
    torch::manual_seed(static_cast<uint64_t>(seed));
    const auto input = torch::rand({rows, 1}), target = torch::rand({rows, 1});
    pipeline_->zero_grad();
    alone_->zero_grad();
    const auto found =
        pipeline_->train_step(input, target, squared_error, schedule);
    const auto expected =
        alone_->train_step(input.to(device()), target, squared_error, schedule);
    bool equal = found.loss.cpu().equal(expected.loss.cpu());
    const auto parameters = alone_->named_parameters();
    for (const auto& item : pipeline_->named_parameters()) {
      const at::Tensor* const other = parameters.find(item.key());
      equal = equal && other && item.value().grad().equal(other->grad());
    }
    return equal;
  }

  const torch::Device& device() const { return pipeline_->device(); }

  // Returns the transport of the pipeline and why.
  std::string transport() const {
    return std::string("transfers: ") + to_string(pipeline_->transfers()) +
           ", " + pipeline_->transfers_reason();
  }

 private:
  int ranks_;
  DistributedPipeline pipeline_;
  GPipe alone_;
};

// Steps of two shapes, so that predicted shapes are wrong once.
CheckResult run_steps(Comparison& comparison) {
  constexpr int64_t kSteps = 10, kMoreSteps = 5;
  for (int64_t step = 1; step <= kSteps + kMoreSteps; ++step) {
    const int64_t rows = kChunks * (step <= kSteps ? 32 : 48);
    if (comparison.step(rows, step)) continue;
    std::ostringstream text;
    text << "step " << step << " of " << rows
         << " rows: the loss or a gradient differs from one process";
    return {CheckOutcome::kFailed, text.str()};
  }
  return {CheckOutcome::kPassed,
          "10 steps and 5 of another shape have the bits of one process"};
}

CheckResult run_all(const std::shared_ptr<World>& world,
                    const RankCheckOptions& options) {
  const bool dies = world->rank() == world->size() - 1;
  if (dies && options.die_at == "connected") std::raise(SIGKILL);
  Comparison comparison(world, options.transfers, options.die_at == "forward");
  if (world->rank() == 0) std::cout << comparison.transport() << std::endl;
  if (dies && options.die_at == "built") std::raise(SIGKILL);
  CheckResult result = run_steps(comparison);
  if (options.at_end.empty()) return result;
  std::ostringstream line;
  line << "process " << getpid() << " uses " << comparison.device();
  const auto lines = all_gather(*world, line.str(), "the command at the end");
  if (world->rank() == 0) {
    for (const auto& each : lines) std::cout << each << "\n";
    std::cout << std::flush;
    const int status = std::system(options.at_end.c_str());
    if (status != 0) {
      std::ostringstream text;
      text << "'" << options.at_end << "' ended with status " << status;
      result = {CheckOutcome::kFailed, text.str()};
    }
  }
  // The other processes keep their devices until the command has ended.
  all_gather(*world, "", "the end of the command");
  return result;
}

}  // namespace

CheckResult check_ranks(const WorldOptions& world,
                        const RankCheckOptions& options) {
  static const std::set<std::string> places{"", "connected", "built",
                                            "forward"};
  TORCH_CHECK_VALUE(places.count(options.die_at) > 0, "there is no place '",
                    options.die_at,
                    "' to die at: use connected, built or forward");
  TORCH_CHECK_VALUE(world.size >= 2,
                    "the check of ranks needs at least 2 "
                    "processes, but the world has ",
                    world.size, ": start it with the launcher and --nproc=2");
  if (options.die_at.empty()) return run_all(World::connect(world), options);
  try {
    run_all(World::connect(world), options);
  } catch (const PeerError& error) {
    const bool named = error.failure().rank == world.size - 1;
    return {named ? CheckOutcome::kPassed : CheckOutcome::kFailed,
            "told of the end of rank " + std::to_string(world.size - 1) + ": " +
                error.failure().to_string()};
  }
  return {CheckOutcome::kFailed,
          "the steps ended without an error, although "
          "the last rank should have died"};
}

}  // namespace gpipe::tools
