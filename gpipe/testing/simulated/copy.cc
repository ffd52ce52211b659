#include "gpipe/testing/simulated/copy.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/testing/simulated/happens_before.h"
#include "gpipe/testing/simulated/pinned.h"
#include "gpipe/testing/simulated/simulation.h"
#include "gpipe/testing/simulated/tensor_memory.h"

namespace gpipe::simulated {
namespace {

std::mutex cost_mutex;
CopyCost cost_of_copies;

double seconds(const at::Tensor& tensor) {
  std::lock_guard<std::mutex> lock(cost_mutex);
  return cost_of_copies.latency +
         cost_of_copies.seconds_per_byte * static_cast<double>(tensor.nbytes());
}

void sleep(double seconds) {
  if (seconds > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
}

Simulation& simulation() { return Simulation::get(); }

void within_device(const at::Tensor& source, const at::Tensor& target) {
  simulation().enqueue(stream_of(target),
                       {"a copy",
                        {access(source, false), access(target, true)},
                        [from = host_alias(source), to = host_alias(target)] {
                          to.copy_(from);
                        }});
}

// Copies like CUDA: on the current stream of the source, after the earlier work
// and before the later work of the target's stream.
void between_devices(const at::Tensor& source, const at::Tensor& target) {
  const c10::Stream from_stream = stream_of(source);
  const c10::Stream to_stream = stream_of(target);
  simulation().block(from_stream, simulation().record(to_stream));
  simulation().enqueue(from_stream,
                       {"a copy to another device",
                        {access(source, false), access(target, true)},
                        [from = host_alias(source), to = host_alias(target),
                         time = seconds(source)] {
                          sleep(time);
                          to.copy_(from);
                        },
                        to_stream});
  simulation().block(to_stream, simulation().record(from_stream));
}

// Copies from the host. Memory that is not pinned has been read when this
// returns. Pinned memory is read later, unless the caller must wait.
void from_host(const at::Tensor& source, const at::Tensor& target,
               bool non_blocking) {
  const c10::Stream stream = stream_of(target);
  const bool pinned = is_pinned(source.storage().data());
  const at::Tensor read = pinned ? source : source.clone();
  std::vector<Access> accesses = {access(target, true)};
  if (pinned) accesses.push_back(access(source, false));
  simulation().enqueue(
      stream, {"a copy from the host", std::move(accesses),
               [from = read, to = host_alias(target), time = seconds(source)] {
                 sleep(time);
                 to.copy_(from);
               }});
  if (!non_blocking) simulation().host_wait(stream);
}

// Copies as to pinned memory: later, unless the caller must wait.
void to_host(const at::Tensor& source, const at::Tensor& target,
             bool non_blocking) {
  const c10::Stream stream = stream_of(source);
  std::vector<Access> accesses = {access(source, false)};
  if (is_pinned(target.storage().data())) {
    accesses.push_back(access(target, true));
  }
  simulation().enqueue(stream, {"a copy to the host", std::move(accesses),
                                [from = host_alias(source), to = target,
                                 time = seconds(source)] {
                                  sleep(time);
                                  to.copy_(from);
                                }});
  if (!non_blocking) simulation().host_wait(stream);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target,
                     bool non_blocking) {
  if (source.numel() != target.numel()) {
    return copy_from(source.expand(target.sizes()), target, non_blocking);
  }
  if (source.device() == target.device()) {
    within_device(source, target);
  } else if (is_simulated(source) && is_simulated(target)) {
    between_devices(source, target);
  } else if (is_simulated(target)) {
    from_host(source, target, non_blocking);
  } else {
    to_host(source, target, non_blocking);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source,
                                const at::Tensor& target) {
  if (source.sizes() != target.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, /*non_blocking=*/false);
}

}  // namespace

void set_copy_cost(const CopyCost& cost) {
  std::lock_guard<std::mutex> lock(cost_mutex);
  cost_of_copies = cost;
}

TORCH_LIBRARY_IMPL(aten, HPU, library) {
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
}

}  // namespace gpipe::simulated
