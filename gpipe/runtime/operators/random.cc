#include "gpipe/runtime/operators/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace gpipe::internal {
namespace {

thread_local RandomScope* current_scope = nullptr;

at::Generator copy_of(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.clone();
}

bool is_default(const at::Generator& generator) {
  return generator == at::globalContext().defaultGenerator(generator.device());
}

// Returns whether the devices are the same. A device without index is the
// current one of its type.
bool is_same(const c10::Device& with_index, const c10::Device& device) {
  if (with_index == device) return true;
  return with_index.type() == device.type() && !device.has_index() &&
         at::globalContext().defaultGenerator(device).device() == with_index;
}

// Returns a hash of `x`: the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
// Each bit of the input changes about half of the bits of the output.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t random64(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

StepSeed::StepSeed() : outer_(RandomScope::current()) {
  // The outer layer waits for this pipeline, so the draw must be made here, on
  // the layer's thread and from its generator.
  if (outer_) seed_ = random64(*outer_->generator(c10::Device(c10::kCPU)));
}

uint64_t StepSeed::get() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!seed_) seed_ = random64(at::detail::getDefaultCPUGenerator());
  used_ = true;
  return *seed_;
}

void StepSeed::set(uint64_t seed) {
  std::lock_guard<std::mutex> lock(mutex_);
  seed_ = seed;
}

bool StepSeed::used() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return used_;
}

uint64_t StepSeed::peek() {
  return random64(at::detail::getDefaultCPUGenerator().clone());
}

void StepSeed::draw() { random64(at::detail::getDefaultCPUGenerator()); }

RandomScope::RandomScope(StepSeed& step, int64_t microbatch, c10::Device device,
                         CallDraws* draws, bool again)
    : step_(&step),
      microbatch_(microbatch),
      device_(device),
      draws_(draws),
      again_(again),
      outer_(std::exchange(current_scope, this)) {}

RandomScope::RandomScope(CallDraws& draws, bool again)
    : draws_(&draws), again_(again), outer_(current_scope) {
  if (again) {
    for (const CallDraws::Start& start : draws.starts) {
      copies_.push_back(copy_of(start.before));
    }
  }
  current_scope = this;  // last, as the rest may throw
}

RandomScope::~RandomScope() { current_scope = outer_; }

RandomScope* RandomScope::current() { return current_scope; }

void RandomScope::enter_layer(int64_t layer) {
  layer_ = layer;
  cpu_.seeded = false;
  accelerator_.seeded = false;
}

at::Generator& RandomScope::seeded(Lazy& lazy, const c10::Device& device) {
  if (!lazy.generator.defined()) {
    if (device.is_cpu()) {
      lazy.generator = at::detail::createCPUGenerator();
    } else {
      at::Generator shared = at::globalContext().defaultGenerator(device);
      std::lock_guard<std::mutex> lock(shared.mutex());
      lazy.generator = shared.clone();
    }
  }
  if (!lazy.seeded) {
    lazy.generator.set_current_seed(
        mix(mix(mix(step_->get()) ^ static_cast<uint64_t>(microbatch_)) ^
            static_cast<uint64_t>(layer_)));
    lazy.seeded = true;
  }
  return lazy.generator;
}

std::optional<at::Generator> RandomScope::generator(const c10::Device& device) {
  if (device.is_meta()) return std::nullopt;  // nothing is drawn on it
  if (is_of_function()) return generator_of_call(device);
  if (device.is_cpu()) return seeded(cpu_, device);
  if (device == device_) return seeded(accelerator_, device);
  return std::nullopt;
}

std::optional<at::Generator> RandomScope::generator_of_call(
    const c10::Device& device) {
  if (const at::Generator* const copy = copy_for(device)) return *copy;
  std::optional<at::Generator> found;
  if (outer_) found = outer_->generator(device);
  if (!found) found = at::globalContext().defaultGenerator(device);
  if (!again_) record_start(*found);
  return found;
}

const at::Generator* RandomScope::copy_for(const c10::Device& device) const {
  for (std::size_t k = 0; k < copies_.size(); ++k) {
    if (is_same(draws_->starts[k].device, device)) return &copies_[k];
  }
  return nullptr;
}

void RandomScope::record_start(const at::Generator& generator) {
  for (const CallDraws::Start& start : draws_->starts) {
    if (start.device == generator.device()) return;
  }
  draws_->starts.push_back({generator.device(), copy_of(generator)});
}

bool RandomScope::owns(const at::Generator& generator) const {
  if (!is_of_function()) {
    return generator == cpu_.generator || generator == accelerator_.generator;
  }
  if (std::find(copies_.begin(), copies_.end(), generator) != copies_.end()) {
    return true;
  }
  return outer_ ? outer_->owns(generator) : is_default(generator);
}

at::Generator RandomScope::given(const at::Generator& generator) {
  // Inside an operator that was called without a generator, or an undefined
  // generator.
  if (!generator.defined()) return generator;
  if (owns(generator)) {
    if (!is_of_function()) return generator;
    if (!again_) {
      record_start(generator);
      return generator;
    }
    if (!is_default(generator)) return generator;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (again_) {
    // A program may also pass the default generator itself.
    const bool passed = std::any_of(
        draws_->given.begin(), draws_->given.end(),
        [&](const GivenDraw& draw) { return draw.generator == generator; });
    const at::Generator* const copy =
        is_of_function() && !passed && is_default(generator)
            ? copy_for(generator.device())
            : nullptr;
    return copy ? *copy : replayed(generator);
  }
  // The outer layer that runs this pipeline, or that runs this function, may be
  // in a recompute, too.
  RandomScope* const outer = is_of_function() ? outer_ : step_->outer_;
  const at::Generator found = outer ? outer->given(generator) : generator;
  if (draws_) draws_->given.push_back({generator, copy_of(found)});
  return found;
}

// A copy is kept for each draw, not only for the first, because a layer may
// also seed its generator between draws.
at::Generator RandomScope::replayed(const at::Generator& generator) {
  std::size_t& next = next_[generator.unsafeGetGeneratorImpl()];
  while (next < draws_->given.size()) {
    const GivenDraw& draw = draws_->given[next++];
    if (draw.generator == generator) return draw.before.clone();
  }
  return generator;  // made by the layer during this call
}

}  // namespace gpipe::internal
