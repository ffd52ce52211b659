// Random numbers that depend on the step, the micro-batch and the layer only.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "gpipe/dispatch/interceptor.h"

namespace gpipe {

class RandomScope;

// The seed of one mini-batch. Drawn from LibTorch's default CPU generator (or,
// when the pipeline is itself part of a layer of a pipeline, from the
// generator of that layer) when the first random operator wants it, so that a
// model without any leaves that generator alone.
//
// Threads: get() may be called from any thread.
class StepSeed {
 public:
  StepSeed();
  uint64_t get();

  // For a step of several processes: what get() returns from now on, and
  // whether it has been called. Nothing is drawn.
  void set(uint64_t seed);
  bool used() const;

  // What the next mini-batch would draw, without drawing it; and to draw it.
  static uint64_t peek();
  static void draw();

 private:
  friend class RandomScope;

  // Of the layer that this pipeline is run by; it waits while forwards run.
  RandomScope* const outer_;
  mutable std::mutex mutex_;
  std::optional<uint64_t> seed_;
  bool used_ = false;
};

// A generator that a layer gave to an operator, and a copy from before that.
struct GivenDraw {
  at::Generator generator, before;
};

// While in scope, random operators on this thread that are given no generator
// use one seeded from (step, micro-batch, layer). So the numbers are the same
// for any balance, any schedule and any timing, and again in a recompute;
// LibTorch's one generator per process would be shared by all workers.
//
// How: an interceptor for the operators that have a `generator` argument and
// for none else, so that the others pay nothing. Fused operators of
// accelerators that draw from the device's default generator without such an
// argument run with its state exchanged for the cell's.
//
// An operator that is given a generator uses that one. In a recompute it gets a
// copy of what the generator was in the forward, and leaves it alone: others
// have drawn from it since.
class RandomScope {
 public:
  // `device`: the partition's. Operators on it and on the CPU are served.
  // `microbatch`: counted over all pipelines that share the step.
  // `draws`: of a checkpointed cell, filled in the forward and read in the
  // recompute (`again`); else null.
  RandomScope(StepSeed& step, int64_t microbatch, c10::Device device,
              std::vector<GivenDraw>* draws = nullptr, bool again = false);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  // What follows is layer `layer` of the model, counted from 0.
  void enter_layer(int64_t layer);

  // The generator for operators on `device`, seeded on first use in a layer;
  // none if it is neither the CPU nor the partition's device.
  std::optional<at::Generator> generator(const c10::Device& device);

  // What an operator that is given `generator` is to use. Threads: also those
  // of a pipeline that a layer runs.
  at::Generator given(const at::Generator& generator);

  // The innermost scope of this thread, or null.
  static RandomScope* current();

 private:
  struct Lazy {
    at::Generator generator;
    bool seeded = false;
  };
  at::Generator& seeded(Lazy& lazy, const c10::Device& device);
  at::Generator replayed(const at::Generator& generator);

  StepSeed& step_;
  const int64_t microbatch_;
  const c10::Device device_;
  int64_t layer_ = -1;
  Lazy cpu_, accelerator_;
  std::vector<GivenDraw>* const draws_;
  const bool again_;
  std::mutex mutex_;  // of draws_ and next_
  // Where the next draw of each is looked for. Layers may have generators of
  // their own, and, in a pipeline in a layer, run at the same time.
  std::unordered_map<const c10::GeneratorImpl*, std::size_t> next_;
  RandomScope* const outer_;
  InterceptScope intercept_{Interceptor::kCell};
};

}  // namespace gpipe
