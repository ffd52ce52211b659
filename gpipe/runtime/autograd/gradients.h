// Gradients of leaves: their sums over micro-batches, their norm, and a search
// for NaN and infinity in them and in other tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/non_finite_error.h"

namespace gpipe::internal {

// The order in which gradients of micro-batches are added.
enum class SumOrder {
  // The order in which the schedule runs the backwards. Only one sum per leaf
  // is held.
  kAsTheyCome,
  // Micro-batch 0 first, independent of the schedule, so that all schedules
  // give the same bits. Gradients that arrive early are held: up to one per
  // leaf and micro-batch, if the backwards run in reverse.
  kByMicrobatch,
};

// One gradient sum per leaf. The addition is in place if this object alone
// holds the sum, so that only one tensor per leaf is live between
// micro-batches. Not thread-safe; used within a LeafSink.
class GradSum {
 public:
  // For sums without micro-batches, in the order of add().
  GradSum() = default;
  GradSum(SumOrder order, int64_t microbatches)
      : order_(order), left_(microbatches) {}

  // Adds `grad` to the sum of `leaf`. Takes ownership; an undefined `grad` is
  // ignored.
  void add(int64_t leaf, at::Tensor grad);

  // Adds `grad` of a micro-batch when its turn comes.
  void add(int64_t microbatch, int64_t leaf, at::Tensor grad);
  // Reports that all gradients of `microbatch` have been added. Call once for
  // each micro-batch.
  void finish(int64_t microbatch);
  // Returns whether `microbatch` is the last one to be added. Then a sum is
  // complete as soon as the gradient of this micro-batch is in it.
  bool last(int64_t microbatch) const;
  // Returns whether all micro-batches have finished.
  bool complete() const { return left_ == 0; }

  // Moves out the sum of `leaf`; undefined if nothing was added. One that is
  // not used can be added again.
  at::Tensor take(int64_t leaf);

 private:
  struct Sum {
    at::Tensor tensor;
    bool own = false;
  };
  std::vector<Sum> sums_;
  SumOrder order_ = SumOrder::kAsTheyCome;
  int64_t left_ = 0;  // micro-batches that have not finished
  // For kByMicrobatch: the next micro-batch to add, and gradients that arrived
  // early.
  struct Early {
    bool finished = false;
    std::vector<std::pair<int64_t, at::Tensor>> grads;  // by leaf
  };
  int64_t turn_ = 0;
  std::map<int64_t, Early> early_;
};

// Returns `grad` divided by `divisor`; in place if `grad` is the only holder of
// its memory.
at::Tensor divide(at::Tensor grad, double divisor);

// Replaces gradients that share memory with an earlier one by copies, such as
// those of two summands. The engine makes a gradient the `.grad` of a leaf
// without a copy, and `.grad` is changed in place. Undefined ones stay.
void separate(std::vector<at::Tensor>& grads);

// Throws c10::ValueError if `max_norm` is negative, for which LibTorch reverses
// gradients, or NaN.
void check_max_norm(double max_norm);

// The next three functions are the parts of
// torch::nn::utils::clip_grad_norm_(). They use the same operators on the same
// numbers and give the same bits. LibTorch's function requires all gradients on
// one device. It does not scale sparse gradients, which are scaled here. With
// an infinite maximum and a norm that is not finite, it makes all gradients
// NaN, which stay as they are here.

// Returns the norm of one gradient: a scalar on its device. `type`: the order
// of the norm; infinity: the largest absolute value. Not called for order 0,
// where the total norm is the number of gradients.
at::Tensor norm_of(const at::Tensor& grad, double type);

// Returns the norm over all gradients from the norm of each: a scalar on the
// device of the first. Consecutive norms on one other device are copied
// together. `norms`: in the order of the gradients; at least one. For order 0
// only their number counts.
at::Tensor total_norm(std::vector<at::Tensor> norms, double type);

// Multiplies `grads`, whose norm is `total`, in place so that the norm is at
// most `max_norm`. If `max_norm` is infinite, changes nothing.
void scale_grads(const std::vector<at::Tensor>& grads, const at::Tensor& total,
                 double max_norm);

// Clips the gradients of `parameters` to `max_norm` and returns the norm before
// clipping; 0 if there are no gradients. A parameter that occurs several times
// counts once. `type`: the order of the norm. Throws as check_max_norm() does.
// Waits for the devices. Not thread-safe.
double clip_grad_norm(const std::vector<at::Tensor>& parameters,
                      double max_norm, double type);

// Returns a text such as "3 of 64 elements are nan and 1 inf", or nullopt if
// all elements are finite. Also nullopt for tensors that are empty, undefined,
// not strided, of an integer type, or on the meta device. Waits for the
// tensor's device.
// Threads: any.
std::optional<std::string> non_finite_part(const at::Tensor& tensor);

// Throws NonFiniteError if `tensor` is not finite. `what`: the name of the
// tensor in the error, such as "the output of layer '3'".
void check_finite(const at::Tensor& tensor, const std::string& what);

// Does the same for several tensors. If there are more than one, the error
// names the element.
void check_finite(const std::vector<at::Tensor>& tensors,
                  const std::string& what);

// Checks gradients while the engine runs. Engine threads must not wait for a
// device, so watch() only starts the counting, and check() waits for the
// result.
class NonFiniteGradients {
 public:
  // Starts the check of `grad`. `of` returns its name, such as "parameter
  // '3.weight'", and is called by check() if the gradient is not finite. Not
  // thread-safe.
  void watch(const at::Tensor& grad, std::function<std::string()> of);
  // Throws NonFiniteError if any of the gradients is not finite. The text lists
  // all of them (up to 8 by name) and ends with `where`. Waits for the devices.
  void check(const std::string& where = "") const;

 private:
  struct Seen {
    std::function<std::string()> of;
    int64_t elements = 0;
    at::Tensor finite, nan;  // number of such elements, a scalar on the device
  };
  std::vector<Seen> seen_;
};

}  // namespace gpipe::internal
