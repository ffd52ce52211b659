// Random numbers that depend only on the step, the micro-batch and the layer.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/libtorch/dispatcher.h"
#include "gpipe/runtime/operators/call_record.h"

namespace gpipe::internal {

class RandomScope;

// Draws 64 bits from a generator of the CPU. Thread-safe.
uint64_t random64(at::Generator generator);

// The seed of one mini-batch. It is drawn from LibTorch's default CPU generator
// when the first random operator needs it. So a model without random operators
// does not change that generator. If the pipeline runs inside a layer of an
// outer pipeline, the seed is drawn from the generator of that layer, which
// waits for the pipeline until leave_layer().
//
// Whether a step that fails has drawn by then depends on times. So the
// destructor takes a draw from the default generator back, unless keep() has
// been called, or others have drawn since.
//
// Thread-safe.
class StepSeed {
 public:
  StepSeed();
  ~StepSeed();
  StepSeed(const StepSeed&) = delete;
  StepSeed& operator=(const StepSeed&) = delete;

  // Keeps the draw: the step has succeeded.
  void keep();

  // Returns the seed. The first call draws it.
  uint64_t get();

  // Ends the forward. Nothing is drawn from the outer layer any more.
  void leave_layer();

  // For a step of several processes. set() fixes what get() returns, and
  // nothing is drawn. used() returns whether get() has been called.
  void set(uint64_t seed);
  bool used() const;

  // peek() returns the seed of the next mini-batch without drawing it. draw()
  // draws it.
  static uint64_t peek();
  static void draw();

 private:
  friend class RandomScope;

  // The scope of the outer layer that runs this pipeline and waits for it, or
  // null.
  RandomScope* outer_;
  mutable std::mutex mutex_;
  std::optional<uint64_t> seed_;
  bool used_ = false;
  // The states of the default generator before and after the draw; none without
  // a draw, and after keep().
  std::optional<std::pair<at::mt19937, at::mt19937>> draw_;
};

// Gives random operators on this thread a generator seeded from (step,
// micro-batch, layer) while in scope, unless they are called with a generator.
// So random numbers are the same for any balance, schedule and timing, and
// again in a recompute. LibTorch's default generator would be shared by all
// workers of the process.
//
// Implementation: interceptors, registered only for operators that draw
// (draw_of()), so that other operators pay nothing.
//
// An operator that is called with a generator uses that generator. In a
// recompute it gets a copy of the generator as it was in the forward. The
// generator itself does not change, because other code may have drawn from it
// since.
class RandomScope {
 public:
  // `microbatch`: counted over all pipelines that share the step. `record`: for
  // a checkpointed cell, filled in the forward and read in the recompute; else
  // null. `again`: this is a recompute.
  RandomScope(StepSeed& step, int64_t microbatch, CallRecord* record = nullptr,
              bool again = false);
  // For one call of a function, inside or outside of a cell. In the first call
  // (`again` is false) operators draw as without this scope, and `record` is
  // filled. In the second call they draw the same numbers again from copies, so
  // that no generator of the program changes. A generator from which the first
  // call has not drawn is used as without this scope.
  RandomScope(CallRecord& record, bool again);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  // Sets the layer of the model (counted from 0) that runs next.
  void enter_layer(int64_t layer);

  // Returns the generator for operators on `device`, seeded on first use in a
  // layer; nullopt if `device` is neither the CPU nor an accelerator.
  // In a call of a function: the generator from which operators must draw.
  std::optional<at::Generator> generator(const c10::Device& device);

  // Returns the generator that an operator must use when it is called with
  // `generator`.
  // Threads: any; also called on threads of a pipeline that a layer runs.
  at::Generator given(const at::Generator& generator);

  // Runs an operator that draws with a generator. Some, such as rrelu, write
  // the numbers into an argument that autograd has saved before.
  void draw(c10::function_ref<void()> run);
  // Calls `action` when the operator that draws has ended; now if none runs.
  void after_draw(std::function<void()> action);

  // Returns the innermost scope of this thread, or null.
  static RandomScope* current();

 private:
  struct Lazy {
    at::Generator generator;
    bool seeded = false;
  };
  // `others`: the number of other accelerators on which the layer has drawn.
  const at::Generator& seeded(Lazy& lazy, int64_t others);
  at::Generator replayed(const at::Generator& generator);
  // Returns whether operators draw from `generator` when they are called
  // without a generator.
  bool owns(const at::Generator& generator) const;
  std::optional<at::Generator> generator_of_call(const c10::Device& device);
  const at::Generator* copy_for(const c10::Device& device) const;
  // Threads: any, as given().
  void record_start(const at::Generator& generator);

  bool is_of_function() const { return !step_; }

  StepSeed* const step_ = nullptr;     // null in a call of a function
  std::vector<at::Generator> copies_;  // of record_->starts, for a second call
  const int64_t microbatch_ = 0;
  int64_t layer_ = -1;
  Lazy cpu_;
  std::vector<Lazy> accelerators_;  // those on which layers have drawn
  CallRecord* const record_;        // null in a cell without checkpointing
  const bool again_;
  std::mutex mutex_;  // guards record_ and next_
  // Index in `record_->given` from which the next draw of each generator is
  // searched. Layers may have their own generators, and the layers of an inner
  // pipeline run at the same time.
  std::unordered_map<const c10::GeneratorImpl*, std::size_t> next_;
  bool draws_ = false;
  std::function<void()> after_draw_;
  RandomScope* const outer_;
  InterceptScope intercept_{kCellKey};
};

// The way by which an operator gets random numbers.
enum class Draw {
  // A `generator` argument. An empty one is filled.
  kGenerator,
  // The state of its device's default generator, which is exchanged for that
  // of the cell's generator during the call.
  kDefaultGenerator,
  // A `dropout_state` tensor, which is made from a seed of the cell. cuDNN
  // would use one per device, which changes with each call of any thread.
  kDropoutState,
  // Other operators that it calls, and that are intercepted themselves.
  kCallees,
  // It draws nothing although it has the tag nondeterministic_seeded, or it
  // does not exist in the builds of LibTorch that gpipe supports.
  kNothing,
  // Nothing is known about it: numbers of a recompute may differ.
  kUnknown,
};

// Returns how `op` draws. For operators without the tag
// nondeterministic_seeded and without a generator argument: kNothing.
// Thread-safe.
Draw draw_of(const c10::OperatorHandle& op);

}  // namespace gpipe::internal
