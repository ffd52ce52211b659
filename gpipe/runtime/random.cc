#include "gpipe/runtime/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {
namespace {

thread_local RandomScope* current_scope = nullptr;

uint64_t random64(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

at::Generator copy_of(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.clone();
}

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every bit of the
// input changes about half of those of the output.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Where an operator runs: as its first tensor, else as its device argument.
c10::Device device_of(const c10::IValue* arguments, std::size_t count,
                      std::optional<std::size_t> device_argument) {
  for (std::size_t k = 0; k < count; ++k) {
    if (arguments[k].isTensor() && arguments[k].toTensor().defined()) {
      return arguments[k].toTensor().device();
    }
  }
  if (device_argument && arguments[*device_argument].isDevice()) {
    return arguments[*device_argument].toDevice();
  }
  return c10::Device(c10::kCPU);
}

std::optional<std::size_t> argument(const c10::FunctionSchema& schema,
                                    const std::string& name) {
  const auto index = schema.argumentIndexWithName(name);
  if (!index) return std::nullopt;
  return static_cast<std::size_t>(*index);
}

// For an operator with a generator argument: fills it if it is empty, and has
// the scope say which one is meant if it is not.
class FillGenerator : public c10::OperatorKernel {
 public:
  explicit FillGenerator(const c10::FunctionSchema& schema)
      : count_(schema.arguments().size()),
        generator_(*argument(schema, "generator")),
        device_(argument(schema, "device")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    c10::IValue* arguments = stack->data() + (stack->size() - count_);
    if (current_scope && arguments[generator_].isGenerator()) {
      arguments[generator_] =
          current_scope->given(arguments[generator_].toGenerator());
      // The operators that it is made of are given the same, as a part of this
      // draw.
      return run_uncovered(Interceptor::kCell, op, stack);
    }
    if (current_scope && arguments[generator_].isNone()) {
      const auto device = device_of(arguments, count_, device_);
      if (auto generator = current_scope->generator(device)) {
        arguments[generator_] = *generator;
      }
    }
    run_intercepted(Interceptor::kCell, op, keys, stack);
  }

 private:
  std::size_t count_, generator_;
  std::optional<std::size_t> device_;
};

// For an operator that draws from its device's default generator and has no
// argument for another: lends that generator the state of the cell's.
class LendState : public c10::OperatorKernel {
 public:
  explicit LendState(const c10::FunctionSchema& schema)
      : count_(schema.arguments().size()) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto device = device_of(stack->data() + (stack->size() - count_),
                                  count_, std::nullopt);
    std::optional<at::Generator> own;
    if (current_scope && !device.is_cpu()) {
      own = current_scope->generator(device);
    }
    if (!own) return run_intercepted(Interceptor::kCell, op, keys, stack);

    // Workers of one device take turns.
    static std::mutex lending;
    std::lock_guard<std::mutex> lock(lending);
    at::Generator shared = at::globalContext().defaultGenerator(device);
    const at::Tensor outer_state = shared.get_state();
    shared.set_state(own->get_state());
    struct Restore {
      at::Generator &shared, &own;
      const at::Tensor& outer_state;
      ~Restore() {
        own.set_state(shared.get_state());
        shared.set_state(outer_state);
      }
    } restore{shared, *own, outer_state};
    run_intercepted(Interceptor::kCell, op, keys, stack);
  }

 private:
  std::size_t count_;
};

template <typename Kernel>
void intercept_with(const c10::OperatorHandle& op) {
  intercept(Interceptor::kCell, op,
            c10::KernelFunction::makeFromBoxedFunctor(
                std::make_unique<Kernel>(op.schema())),
            "gpipe: random numbers of a cell");
}

[[maybe_unused]] const bool intercepted = [] {
  const std::set<std::string> without_argument = {
      "aten::native_dropout",
      "aten::_scaled_dot_product_flash_attention",
      "aten::_scaled_dot_product_efficient_attention",
      "aten::_scaled_dot_product_cudnn_attention",
      "aten::_flash_attention_forward",
      "aten::_efficient_attention_forward",
  };
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    if (argument(op->schema(), "generator")) {
      intercept_with<FillGenerator>(*op);
    } else if (without_argument.count(name.name)) {
      intercept_with<LendState>(*op);
    }
  }
  return true;
}();

}  // namespace

StepSeed::StepSeed() : outer_(RandomScope::current()) {
  // The layer that this pipeline runs in is waiting, so that the draw can be
  // made here only, on its thread and from its generator.
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
                         std::vector<GivenDraw>* draws, bool again)
    : step_(step),
      microbatch_(microbatch),
      device_(device),
      draws_(draws),
      again_(again),
      outer_(std::exchange(current_scope, this)) {}

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
        mix(mix(mix(step_.get()) ^ static_cast<uint64_t>(microbatch_)) ^
            static_cast<uint64_t>(layer_)));
    lazy.seeded = true;
  }
  return lazy.generator;
}

std::optional<at::Generator> RandomScope::generator(const c10::Device& device) {
  if (device.is_meta()) return std::nullopt;  // nothing is drawn there
  if (device.is_cpu()) return seeded(cpu_, device);
  if (device == device_) return seeded(accelerator_, device);
  return std::nullopt;
}

at::Generator RandomScope::given(const at::Generator& generator) {
  const bool of_this =
      generator == cpu_.generator || generator == accelerator_.generator;
  // A part of an operator that was given none; or nothing at all.
  if (of_this || !generator.defined()) return generator;
  std::lock_guard<std::mutex> lock(mutex_);
  if (again_) return replayed(generator);
  // The layer that runs this pipeline may be computed again, too.
  const at::Generator found =
      step_.outer_ ? step_.outer_->given(generator) : generator;
  if (draws_) draws_->push_back({generator, copy_of(found)});
  return found;
}

// Before each operator, and not the first alone: a layer may also seed it.
at::Generator RandomScope::replayed(const at::Generator& generator) {
  std::size_t& next = next_[generator.unsafeGetGeneratorImpl()];
  while (next < draws_->size()) {
    const GivenDraw& draw = (*draws_)[next++];
    if (draw.generator == generator) return draw.before.clone();
  }
  return generator;  // made by the layer in this very call
}

}  // namespace gpipe
