#include "balancing/time_profile.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "balancing/profile/layer_run.h"
#include "balancing/profile/profile_tracker.h"
#include "balancing/profile/sandbox.h"
#include "balancing/profile/threads_scope.h"
#include "gpipe/base/threads.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::balancing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Restores the state of a default generator in its destructor. Copying a layer
// and running dropout draw from the generator.
class KeepRandomState {
 public:
  explicit KeepRandomState(c10::Device device)
      : generator_(at::globalContext().defaultGenerator(device)) {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepRandomState() {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

// Calls its second argument with a layer in training mode.
using VisitLayer = std::function<void(
    std::size_t layer, const std::function<void(torch::nn::AnyModule&)>& run)>;

// The times of one layer in all sweeps. `backward` and `accumulate` are from
// sweeps with whole backwards, `input` and `weight` from those with split ones.
struct LayerSamples {
  std::vector<double> forward, backward, accumulate, input, weight;

  void add(const LayerStamps& stamps, bool split) {
    forward.push_back(stamps.forward());
    if (split) {
      input.push_back(stamps.backward_input());
      weight.push_back(stamps.backward_weight());
    } else {
      backward.push_back(stamps.backward());
      accumulate.push_back(stamps.accumulate());
    }
  }
};

// How a sweep runs.
struct SweepMode {
  // Runs the forwards of all layers and then their backwards, as a pipeline's
  // cell does: then a backward finds its inputs as far away in the caches.
  // Otherwise each layer runs its backward at once, and needs the memory of
  // that layer only.
  bool backwards_last = false;
  bool split = false;  // whether backwards are in two parts
};

void run_backwards(std::span<LayerRun> runs, bool split, ProfileSums& sums) {
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    split ? run->backward_input() : run->backward(sums);
  }
  if (!split) return;
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    run->backward_weight(sums);
  }
}

// Keeps an accelerator busy while the host launches the work of a layer.
// Without it, the device is idle when a layer begins, because weights have just
// been copied from the host, and the times of a small layer would be those of
// its launches. In a step the host is ahead of the device.
class HeadStart {
 public:
  // Does nothing on a device without streams.
  explicit HeadStart(const c10::Device& device) {
    if (!internal::has_streams(device)) return;
    constexpr int64_t kBytes = int64_t{32} << 20;  // 0.6 ms by PCI Express 5
    const auto bytes = at::TensorOptions(at::kByte);
    source_ = at::zeros({kBytes}, bytes.pinned_memory(true));
    target_ = at::empty({kBytes}, bytes.device(device));
  }
  // Gives the current stream of the device a copy from the host.
  void take() {
    if (source_.defined()) target_.copy_(source_, /*non_blocking=*/true);
  }

 private:
  at::Tensor source_, target_;
};

// Runs all layers and appends the times of each to its list. Waits for an
// accelerator at the end only.
void sweep(const VisitLayer& visit_layer, const internal::Value& sample,
           c10::Device device, SweepMode mode, ProfileSums& sums,
           std::vector<LayerSamples>& times, HeadStart& head_start,
           const std::atomic<bool>* stop = nullptr) {
  ProfileTracker tracker;
  internal::UseSkipTracker use_tracker(tracker);
  Boundary boundary = copy_to(sample, device);
  std::vector<LayerRun> runs;
  for (std::size_t k = 0; k < times.size(); ++k) {
    if (stop && *stop) return;
    visit_layer(k, [&](torch::nn::AnyModule& layer) {
      const Visit visit(*layer.ptr(), device);
      head_start.take();
      runs.emplace_back(layer, boundary, tracker, device);
      if (!mode.backwards_last)
        run_backwards({&runs.back(), 1}, mode.split, sums);
    });
  }
  if (mode.backwards_last) run_backwards(runs, mode.split, sums);
  for (std::size_t k = 0; k < runs.size(); ++k) {
    times[k].add(runs[k].stamps(), mode.split);
  }
}

VisitLayer visit_in(std::vector<Sandbox>& sandboxes) {
  return [&](std::size_t k, const auto& run) { run(sandboxes[k].layer()); };
}

// Threads that run copies of the model until the end of the scope.
class Company {
 public:
  Company(const torch::nn::Sequential& module, const internal::Value& sample,
          int64_t threads) {
    const int intra_op = at::get_num_threads();
    for (int64_t k = 0; k < threads; ++k) {
      auto sandboxes =
          std::make_shared<std::vector<Sandbox>>(sandboxes_of(module));
      if (std::ranges::any_of(*sandboxes, [](const Sandbox& each) {
            return !each.is_copy();
          })) {
        return;
      }
      threads_.push_back(internal::background_thread(
          [this, sandboxes, &sample, intra_op, state = at::ThreadLocalState()] {
            const at::ThreadLocalStateGuard as_caller(state);
            const ThreadsScope own_threads(intra_op);
            std::vector<LayerSamples> ignored(sandboxes->size());
            ProfileSums sums(/*keep=*/true);
            SweepMode mode{/*backwards_last=*/true};
            HeadStart none(c10::kCPU);
            while (!stop_) {
              const internal::WorkScope work;
              try {
                sweep(visit_in(*sandboxes), sample, c10::kCPU, mode, sums,
                      ignored, none, &stop_);
              } catch (...) {
                // The measured model throws the same error, to the caller.
                if (!mode.backwards_last) return;
                mode.backwards_last = false;  // see times_of()
              }
            }
          }));
    }
  }
  ~Company() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Company(const Company&) = delete;
  Company& operator=(const Company&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// Returns the median. For an even number of values, that is the mean of the two
// in the middle; 0 if there are none.
double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half]
                           : (values[half - 1] + values[half]) / 2;
}

void check(const TimeOptions& options) {
  TORCH_CHECK_VALUE(std::isfinite(options.timeout()) && options.timeout() >= 0,
                    "timeout must be a number of seconds >= 0, but it is ",
                    options.timeout());
  TORCH_CHECK_VALUE(
      options.concurrent_copies() >= 0,
      "concurrent_copies must be a number of threads >= 0, but it is ",
      options.concurrent_copies());
}

void check_gradients(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    TORCH_CHECK_VALUE(
        !parameter->defined() || !parameter->grad().defined(),
        "some parameter already has a gradient: ", parameter.key(),
        ". Profile a model before it is trained, or after "
        "zero_grad()");
  }
}

bool is_on_cpu(const torch::nn::Module& module) {
  const auto on_cpu = [](const at::Tensor& tensor) {
    return !tensor.defined() || tensor.is_cpu();
  };
  const auto parameters = module.parameters(), buffers = module.buffers();
  return std::ranges::all_of(parameters, on_cpu) &&
         std::ranges::all_of(buffers, on_cpu);
}

// Returns the medians of `layers` layers over sweeps. The first sweep (with
// TimeOptions::split_backward, the first of each kind) does not count.
// `as_in_training`: keeps gradients and activations of the whole model in
// memory; see SweepMode and ProfileSums.
std::vector<LayerTime> times_of(std::size_t layers,
                                const VisitLayer& visit_layer,
                                const internal::Value& sample,
                                c10::Device device, bool as_in_training,
                                const TimeOptions& options) {
  ProfileSums sums(/*keep=*/as_in_training);
  std::vector<LayerSamples> times(layers);
  bool backwards_last = as_in_training;
  HeadStart head_start(device);
  const auto sweep_each_kind = [&] {
    sweep(visit_layer, sample, device, {backwards_last, /*split=*/false}, sums,
          times, head_start);
    if (!options.split_backward()) return;
    sweep(visit_layer, sample, device, {backwards_last, /*split=*/true}, sums,
          times, head_start);
  };
  try {
    sweep_each_kind();
  } catch (const c10::Error&) {
    if (!backwards_last) throw;
    // A layer may change in place what an earlier one has saved. Then each
    // backward must run before the next forward.
    backwards_last = false;
    sweep_each_kind();
  }
  times.assign(layers, {});
  const auto start = Clock::now();
  double passed = 0;
  do {
    sweep_each_kind();
    passed = seconds_since(start);
    if (options.progress()) {
      options.progress()(passed < options.timeout() ? passed / options.timeout()
                                                    : 1);
    }
  } while (passed < options.timeout());

  std::vector<LayerTime> medians;
  for (const LayerSamples& each : times) {
    medians.push_back({median(each.forward), median(each.backward),
                       median(each.input), median(each.weight),
                       median(each.accumulate)});
  }
  return medians;
}

}  // namespace

std::vector<double> totals(const std::vector<LayerTime>& times) {
  std::vector<double> seconds;
  for (const LayerTime& time : times) seconds.push_back(time.total());
  return seconds;
}

namespace detail {

std::vector<LayerTime> profile_times(const torch::nn::Sequential& module,
                                     const internal::Value& sample,
                                     const TimeOptions& options) {
  check(options);
  check_gradients(*module);
  const c10::Device device = internal::with_index(options.device());
  const KeepRandomState keep_host{c10::Device(c10::kCPU)};
  const KeepRandomState keep_device(device);
  // Training records a graph, even if the caller is in inference mode.
  const c10::InferenceMode normal_mode(false);

  std::vector<Sandbox> sandboxes = sandboxes_of(module);
  const Company concurrent_copies(
      module, sample, device.is_cpu() ? options.concurrent_copies() : 0);
  return times_of(sandboxes.size(), visit_in(sandboxes), sample, device,
                  device.is_cpu() && is_on_cpu(*module), options);
}

std::vector<LayerTime> profile_times(int64_t layers, const MakeLayers& make,
                                     const internal::Value& sample,
                                     const TimeOptions& options) {
  check(options);
  const c10::Device device = internal::with_index(options.device());
  const KeepRandomState keep_host{c10::Device(c10::kCPU)};
  const KeepRandomState keep_device(device);
  const c10::InferenceMode normal_mode(false);
  const auto visit_layer = [&](std::size_t k, const auto& run) {
    torch::nn::Sequential one = make(static_cast<int64_t>(k), 1);
    TORCH_CHECK_VALUE(!one.is_empty() && one->size() == 1,
                      "the function was asked for layer ", k, " and returned ",
                      one.is_empty() ? 0 : one->size(), " layers");
    one->train();
    run(*one->begin());
  };
  return times_of(static_cast<std::size_t>(layers), visit_layer, sample, device,
                  /*as_in_training=*/false, options);
}

}  // namespace detail
}  // namespace gpipe::balancing
