#include "balancing/time_profile.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/SequenceNumber.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/nn/modules/container/any.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "balancing/profile/sandbox.h"
#include "balancing/profile/threads_scope.h"
#include "gpipe/base/threads.h"
#include "gpipe/runtime/autograd/gradients.h"
#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/cell/layer.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::balancing {
namespace {

// ---- Forward and backward of one layer, with the times of their parts

using internal::Stamp;
using torch::autograd::Edge;

// Returns the shape, strides and type of a tensor, without its memory.
at::Tensor shape_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad()) return {};
  const at::Tensor plain = tensor.detach();
  return at::empty_like(plain, plain.options().device(at::kMeta));
}

// Copies the sample, since a layer may change it in place.
Boundary copy_to(const internal::Value& sample, c10::Device device) {
  Boundary boundary = without_graph(sample);
  for (internal::Activation& input : boundary.inputs) {
    if (!input.tensor.defined()) continue;
    input.tensor = input.tensor.to(input.tensor.options().device(device),
                                   /*non_blocking=*/false,
                                   /*copy=*/true);
  }
  return boundary;
}

// The sums to which gradients of parameters are added, as training adds those
// of micro-batches. Not thread-safe.
class ProfileSums {
 public:
  // `keep`: whether sums stay in memory until the end, as in training.
  // Otherwise only those of one layer do.
  explicit ProfileSums(bool keep) : keep_(keep) {}

  // Makes a sum of zeros for each of `leaves` that has none yet.
  void begin_layer(const std::vector<at::Tensor>& leaves) {
    if (!keep_) {
      sums_ = internal::GradSum();
      places_.clear();
    }
    place_of_leaf_.clear();
    for (const at::Tensor& leaf : leaves) {
      const auto [found, is_new] =
          places_.emplace(leaf.unsafeGetTensorImpl(),
                          Place{places_.size(), {}, leaf.scalar_type()});
      Place& place = found->second;
      if (is_new || leaf.sizes() != place.sizes ||
          leaf.scalar_type() != place.type) {
        place.sizes = leaf.sizes().vec();
        place.type = leaf.scalar_type();
        sums_.take(place.index);
        sums_.add(place.index, at::zeros_like(leaf));
      }
      place_of_leaf_.push_back(place.index);
    }
  }
  // Adds a gradient of the current layer. `leaf`: its index in the `leaves` of
  // begin_layer().
  void add(std::size_t leaf, at::Tensor grad) {
    sums_.add(place_of_leaf_[leaf], std::move(grad));
  }

 private:
  struct Place {
    std::size_t index;  // in sums_
    std::vector<int64_t> sizes;
    at::ScalarType type;
  };
  const bool keep_;
  internal::GradSum sums_;
  // A layer may make leaves in its forward, at the addresses of earlier ones.
  std::unordered_map<const c10::TensorImpl*, Place> places_;
  std::vector<std::size_t> place_of_leaf_;  // of the current layer
};

// The stamps of a layer's forward and backward.
struct LayerStamps {
  Stamp forward_start, forward_end, backward_start, backward_end;
  // With a backward in two parts: when the first one ends and the second one
  // starts.
  Stamp input_end, weight_start;
  // The start and the end of each addition to ProfileSums.
  std::vector<std::pair<Stamp, Stamp>> sums;
  // Whether the layer computes a gradient of an input, and of a parameter.
  bool has_input = false, has_weight = false;

  double forward() const { return forward_end.seconds_since(forward_start); }
  // Returns the seconds of all additions.
  double accumulate() const {
    double seconds = 0;
    for (const auto& [start, end] : sums) seconds += end.seconds_since(start);
    return seconds;
  }
  // Returns the seconds of the backward without the additions.
  double backward() const {
    return backward_end.seconds_since(backward_start) - accumulate();
  }
  // Return the seconds of the two parts, without the additions. A part that
  // has nothing to compute takes 0.
  double backward_input() const {
    return has_input ? input_end.seconds_since(backward_start) : 0;
  }
  double backward_weight() const {
    return has_weight ? backward_end.seconds_since(weight_start) - accumulate()
                      : 0;
  }
};

// A layer that has run forward, with the graph for its backward.
//
// Threads: all calls on one thread.
class LayerRun {
 public:
  // Runs the forward. Replaces `boundary`, the layer's input, by its output.
  LayerRun(torch::nn::AnyModule& layer, Boundary& boundary,
           ProfileTracker& tracker, c10::Device device)
      : device_(device) {
    internal::Value input = boundary.graph_input();
    std::vector<Edge> input_edges = internal::gradient_edges(input.tensors());
    boundary.inputs.clear();

    const uint64_t begin = at::sequence_number::peek();
    stamps_.forward_start = Stamp::now(device_);
    const internal::Value output =
        internal::call_layer(layer, std::move(input));
    stamps_.forward_end = Stamp::now(device_);

    const std::vector<at::Tensor> outputs = tracker.outputs(output);
    input_edges.insert(input_edges.end(), tracker.popped().begin(),
                       tracker.popped().end());
    for (const at::Tensor& each : outputs) {
      output_shapes_.push_back(shape_of(each));
    }
    graph_ = internal::Subgraph(begin, std::move(input_edges), outputs);
    stamps_.has_input = graph_.wants_input();
    stamps_.has_weight = !graph_.leaves().empty();
    boundary = without_graph(output);
    tracker.end_layer();
  }

  // Runs the backward from ones for all outputs, as a whole or in two parts
  // (see internal::Subgraph). Call either backward(), or
  // backward_input() and then backward_weight(), once. The gradients of
  // parameters go to `sums`.
  void backward(ProfileSums& sums) {
    const internal::LeafSink sink = sink_to(sums);
    graph_.backward(begin_backward(), /*keep_graph=*/false, /*want_input=*/true,
                    std::vector<bool>(graph_.leaves().size(), true), sink);
    stamps_.backward_end = Stamp::now(device_);
    graph_ = internal::Subgraph();
  }
  void backward_input() {
    graph_.backward_input(begin_backward());
    stamps_.input_end = Stamp::now(device_);
  }
  void backward_weight(ProfileSums& sums) {
    const internal::LeafSink sink = sink_to(sums);
    stamps_.weight_start = Stamp::now(device_);
    graph_.backward_weight(sink);
    stamps_.backward_end = Stamp::now(device_);
    graph_ = internal::Subgraph();
  }

  const LayerStamps& stamps() const { return stamps_; }

 private:
  // Returns the gradients of the outputs.
  std::vector<at::Tensor> begin_backward() {
    std::vector<at::Tensor> ones;
    for (const at::Tensor& shape : output_shapes_) {
      ones.push_back(shape.defined()
                         ? at::ones_like(shape, shape.options().device(device_))
                         : at::Tensor());
    }
    stamps_.backward_start = Stamp::now(device_);
    return ones;
  }
  internal::LeafSink sink_to(ProfileSums& sums) {
    sums.begin_layer(graph_.leaves());
    return [this, &sums](std::size_t leaf, at::Tensor grad) {
      Stamp start = Stamp::now(device_);
      sums.add(leaf, std::move(grad));
      stamps_.sums.emplace_back(std::move(start), Stamp::now(device_));
    };
  }

  c10::Device device_;
  LayerStamps stamps_;
  std::vector<at::Tensor> output_shapes_;  // on the meta device
  internal::Subgraph graph_;
};

// ---- Sweeps through a model

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
    try {
      std::lock_guard<std::mutex> lock(generator_.mutex());
      generator_.set_state(state_);
    } catch (const std::exception&) {
      // A device that has failed refuses this, as it refuses all that follows.
    }
  }
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

// Turns off the cache of autocast on this thread while in scope. A cached cast
// of a weight keeps the weight in memory until the caller's autocast scope
// ends, also after its layer has been dropped. Workers of a pipeline have no
// such cache either.
class NoCastCache {
 public:
  NoCastCache() { at::autocast::set_autocast_cache_enabled(false); }
  ~NoCastCache() { at::autocast::set_autocast_cache_enabled(outer_); }
  NoCastCache(const NoCastCache&) = delete;
  NoCastCache& operator=(const NoCastCache&) = delete;

 private:
  const bool outer_ = at::autocast::is_autocast_cache_enabled();
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
    // First, since pinned memory without any context makes one on GPU 0.
    target_ = at::empty({kBytes}, bytes.device(device));
    source_ = at::zeros({kBytes}, bytes.pinned_memory(true));
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
  const NoCastCache no_cast_cache;
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
class ConcurrentCopies {
 public:
  // Calls the other constructor, so that the destructor joins those threads
  // that run if one cannot start.
  ConcurrentCopies(const torch::nn::Sequential& module,
                   const internal::Value& sample, int64_t threads)
      : ConcurrentCopies() {
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
  ~ConcurrentCopies() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  ConcurrentCopies(const ConcurrentCopies&) = delete;
  ConcurrentCopies& operator=(const ConcurrentCopies&) = delete;

 private:
  ConcurrentCopies() = default;

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

void check_gradients(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    TORCH_CHECK_VALUE(
        !parameter->defined() || !parameter->grad().defined(),
        "some parameter already has a gradient: ", parameter.key(),
        ". Profile a model before it is trained, or after "
        "zero_grad()");
  }
}

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
  const ConcurrentCopies concurrent_copies(
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
