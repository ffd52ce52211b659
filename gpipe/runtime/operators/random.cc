#include "gpipe/runtime/operators/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/_cudnn_init_dropout_state.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <set>
#include <utility>

namespace gpipe::internal {
namespace {

thread_local RandomScope* current_random = nullptr;

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
  if (with_index.type() != device.type()) return false;
  if (device.is_cpu()) return true;  // "cpu:0"
  return !device.has_index() &&
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

StepSeed::StepSeed() : outer_(RandomScope::current()) {}

StepSeed::~StepSeed() {
  if (!draw_) return;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  auto* const engine = at::check_generator<at::CPUGeneratorImpl>(generator);
  const at::mt19937_data_pod now = engine->engine().data();
  const at::mt19937_data_pod then = draw_->second.data();
  if (now.left_ == then.left_ && now.state_ == then.state_) {
    engine->set_engine(draw_->first);
  }
}

void StepSeed::keep() {
  std::lock_guard<std::mutex> lock(mutex_);
  draw_.reset();
}

uint64_t StepSeed::get() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!seed_ && outer_) {
    // The thread of the outer layer waits, so that no other one uses its scope.
    seed_ = random64(*outer_->generator(c10::Device(c10::kCPU)));
  } else if (!seed_) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> drawing(generator.mutex());
    auto* const engine = at::check_generator<at::CPUGeneratorImpl>(generator);
    const at::mt19937 before = engine->engine();
    seed_ = engine->random64();
    draw_.emplace(before, engine->engine());
  }
  used_ = true;
  return *seed_;
}

void StepSeed::leave_layer() {
  std::lock_guard<std::mutex> lock(mutex_);
  outer_ = nullptr;
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
  return random64(copy_of(at::detail::getDefaultCPUGenerator()));
}

void StepSeed::draw() { random64(at::detail::getDefaultCPUGenerator()); }

RandomScope::RandomScope(StepSeed& step, int64_t microbatch, CallRecord* record,
                         bool again)
    : step_(&step),
      microbatch_(microbatch),
      record_(record),
      again_(again),
      outer_(std::exchange(current_random, this)) {}

RandomScope::RandomScope(CallRecord& record, bool again)
    : record_(&record), again_(again), outer_(current_random) {
  if (again) {
    for (const CallRecord::Start& start : record.starts) {
      copies_.push_back(copy_of(start.before));
    }
  }
  current_random = this;  // last, as the rest may throw
}

RandomScope::~RandomScope() { current_random = outer_; }

RandomScope* RandomScope::current() { return current_random; }

void RandomScope::enter_layer(int64_t layer) {
  layer_ = layer;
  cpu_.seeded = false;
  for (Lazy& each : accelerators_) each.seeded = false;
}

const at::Generator& RandomScope::seeded(Lazy& lazy, int64_t others) {
  if (!lazy.seeded) {
    lazy.generator.set_current_seed(mix(
        mix(mix(step_->get()) ^ static_cast<uint64_t>(microbatch_)) ^
        static_cast<uint64_t>(layer_) ^ (static_cast<uint64_t>(others) << 32)));
    lazy.seeded = true;
  }
  return lazy.generator;
}

std::optional<at::Generator> RandomScope::generator(const c10::Device& device) {
  if (device.is_meta()) return std::nullopt;  // nothing is drawn on it
  if (is_of_function()) return generator_of_call(device);
  if (device.is_cpu()) {
    if (!cpu_.generator.defined()) {
      cpu_.generator = at::detail::createCPUGenerator();
    }
    return seeded(cpu_, /*others=*/0);
  }
  auto lazy = std::ranges::find_if(accelerators_, [&](const Lazy& each) {
    return is_same(each.generator.device(), device);
  });
  if (lazy == accelerators_.end()) {
    at::Generator shared;
    try {
      shared = at::globalContext().defaultGenerator(device);
    } catch (const c10::Error&) {
      return std::nullopt;  // no random numbers on such a device
    }
    lazy = accelerators_.insert(lazy, Lazy{copy_of(shared)});
  }
  // Accelerators of one type give the same numbers for the same seed.
  return seeded(*lazy, std::ranges::count(accelerators_, true, &Lazy::seeded));
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
    if (is_same(record_->starts[k].device, device)) return &copies_[k];
  }
  return nullptr;
}

void RandomScope::record_start(const at::Generator& generator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const CallRecord::Start& start : record_->starts) {
    if (start.device == generator.device()) return;
  }
  record_->starts.push_back({generator.device(), copy_of(generator)});
}

bool RandomScope::owns(const at::Generator& generator) const {
  if (!is_of_function()) {
    return generator == cpu_.generator ||
           std::ranges::find(accelerators_, generator, &Lazy::generator) !=
               accelerators_.end();
  }
  if (std::ranges::find(copies_, generator) != copies_.end()) {
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
    const bool passed =
        std::ranges::any_of(record_->given, [&](const CallRecord::Given& draw) {
          return draw.generator == generator;
        });
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
  if (record_) record_->given.push_back({generator, copy_of(found)});
  return found;
}

// A copy is kept for each draw, not only for the first, because a layer may
// also seed its generator between draws.
at::Generator RandomScope::replayed(const at::Generator& generator) {
  std::size_t& next = next_[generator.unsafeGetGeneratorImpl()];
  while (next < record_->given.size()) {
    const CallRecord::Given& draw = record_->given[next++];
    if (draw.generator == generator) return draw.before.clone();
  }
  return generator;  // made by the layer during this call
}

void RandomScope::draw(c10::function_ref<void()> run) {
  if (std::exchange(draws_, true)) return run();  // inside another one
  const auto end = c10::make_scope_exit([this] {
    draws_ = false;
    after_draw_ = nullptr;
  });
  run();
  if (after_draw_) after_draw_();
}

void RandomScope::after_draw(std::function<void()> action) {
  if (!draws_) return action();
  after_draw_ = std::move(action);
}

namespace {

// Devices with the same index modulo this number share a lock.
constexpr std::size_t kMostDevices = 64;

// Returns the device on which an operator runs: that of its first tensor
// argument, else its device argument, else the CPU.
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

// The interceptor of operators with a generator argument. It fills an empty
// argument with the cell's generator. A given generator is replaced by
// RandomScope::given().
class FillGenerator : public c10::OperatorKernel {
 public:
  explicit FillGenerator(const c10::FunctionSchema& schema)
      : count_(schema.arguments().size()),
        generator_(*argument(schema, "generator")),
        device_(argument(schema, "device")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    c10::IValue* arguments = stack->data() + (stack->size() - count_);
    RandomScope* const scope = RandomScope::current();
    c10::IValue& given = arguments[generator_];
    // An undefined generator, which cannot be unboxed. It counts as none.
    if (given.isGenerator() && !given.isPtrType()) given = c10::IValue();
    if (scope && given.isGenerator()) {
      arguments[generator_] = scope->given(given.toGenerator());
      // Operators called inside this one must use the same generator, as part
      // of this draw.
      return scope->draw([&] { run_uncovered(kCellKey, op, stack); });
    }
    const auto run = [&] { run_intercepted(kCellKey, op, keys, stack); };
    if (!scope) return run();
    const auto device = device_of(arguments, count_, device_);
    if (auto generator = scope->generator(device)) {
      arguments[generator_] = *generator;
    }
    scope->draw(run);
  }

 private:
  std::size_t count_, generator_;
  std::optional<std::size_t> device_;
};

// The interceptor of operators that draw from the default generator of their
// device and have no generator argument. During the call the default generator
// has the state of the cell's generator.
class LendState : public c10::OperatorKernel {
 public:
  explicit LendState(const c10::FunctionSchema& schema)
      : count_(schema.arguments().size()),
        dropout_(argument(schema, "dropout_p")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const c10::IValue* arguments = stack->data() + (stack->size() - count_);
    const auto device = device_of(arguments, count_, std::nullopt);
    RandomScope* const scope = RandomScope::current();
    std::optional<at::Generator> own;
    if (scope && !device.is_cpu() && draws(arguments)) {
      own = scope->generator(device);
    }
    const std::size_t place =
        own ? static_cast<std::size_t>(device.index()) % kMostDevices : 0;
    // An operator that another one calls, as those of attention do, draws from
    // the state that the other one has been lent.
    thread_local std::array<bool, kMostDevices> is_lent{};
    if (!own || is_lent[place] ||
        *own == at::globalContext().defaultGenerator(device)) {
      return run_intercepted(kCellKey, op, keys, stack);
    }

    // Workers of one device run one at a time here.
    static std::array<std::mutex, kMostDevices> lending;
    std::lock_guard<std::mutex> lock(lending[place]);
    at::Generator shared = at::globalContext().defaultGenerator(device);
    const at::Tensor outer_state = shared.get_state();
    shared.set_state(own->get_state());
    const auto restore = [&] {
      is_lent[place] = false;
      own->set_state(shared.get_state());
      shared.set_state(outer_state);
    };
    is_lent[place] = true;
    try {
      run_intercepted(kCellKey, op, keys, stack);
    } catch (...) {
      try {
        restore();
      } catch (const std::exception&) {
        // A device that has failed refuses this, too.
      }
      throw;
    }
    restore();
  }

 private:
  // Attention without dropout draws nothing.
  bool draws(const c10::IValue* arguments) const {
    return !dropout_ || !arguments[*dropout_].isDouble() ||
           arguments[*dropout_].toDouble() > 0;
  }

  std::size_t count_;
  std::optional<std::size_t> dropout_;
};

// The interceptor of cuDNN's recurrent layers. Their dropout continues the
// state of its `dropout_state` argument. If there is none, LibTorch passes one
// that it keeps for each device.
class MakeDropoutState : public c10::OperatorKernel {
 public:
  explicit MakeDropoutState(const c10::FunctionSchema& schema)
      : count_(schema.arguments().size()),
        state_(*argument(schema, "dropout_state")),
        dropout_(*argument(schema, "dropout")),
        train_(*argument(schema, "train")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    c10::IValue* arguments = stack->data() + (stack->size() - count_);
    RandomScope* const scope = RandomScope::current();
    const double dropout = arguments[dropout_].toDouble();
    const bool train = arguments[train_].toBool();
    if (scope && train && dropout > 0) {
      if (const auto generator = scope->generator(c10::Device(c10::kCPU))) {
        const auto device = device_of(arguments, count_, std::nullopt);
        arguments[state_] = at::_cudnn_init_dropout_state(
            dropout, train, static_cast<int64_t>(random64(*generator)),
            at::TensorOptions(at::kByte).device(device));
      }
    }
    run_intercepted(kCellKey, op, keys, stack);
  }

 private:
  std::size_t count_, state_, dropout_, train_;
};

// The operators that draw from the default generator of their device.
const std::set<std::string>& without_argument() {
  static const std::set<std::string> names = {
      "aten::native_dropout",
      "aten::_scaled_dot_product_flash_attention",
      "aten::_scaled_dot_product_efficient_attention",
      "aten::_scaled_dot_product_cudnn_attention",
      "aten::_scaled_dot_product_fused_attention_overrideable",
      "aten::_triton_scaled_dot_attention",
      "aten::_flash_attention_forward",
      "aten::_efficient_attention_forward",
      "aten::_cudnn_attention_forward",
  };
  return names;
}

// The operators that draw nothing although they have the tag.
const std::set<std::string>& drawing_nothing() {
  static const std::set<std::string> names = {
      // Backwards, which get the seed and the offset of the forward.
      "aten::_cudnn_attention_backward",
      "aten::_scaled_dot_product_cudnn_attention_backward",
      "aten::_scaled_dot_product_efficient_attention_backward",
      // They get a seed as an argument.
      "aten::_cudnn_init_dropout_state",
      "aten::_fill_mem_eff_dropout_mask_",
      "rngprims::philox_rand",
      // Without dropout, as their names say, or since they refuse it.
      "aten::_cudnn_attention_forward_no_dropout_inplace",
      "aten::_flash_attention_forward_no_dropout_inplace",
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      // They choose an implementation, or compute a softmax.
      "aten::_fused_sdp_choice",
      "aten::_nested_tensor_softmax_with_shape",
      // For Apple's and AMD's devices.
      "aten::_lstm_mps",
      "aten::_scaled_dot_product_attention_math_for_mps",
      "aten::miopen_rnn",
  };
  return names;
}

template <typename Kernel>
void intercept_with(const c10::OperatorHandle& op) {
  intercept(kCellKey, op,
            c10::KernelFunction::makeFromBoxedFunctor(
                std::make_unique<Kernel>(op.schema())),
            "gpipe: random numbers of a cell");
}

[[maybe_unused]] const bool random_intercepted = [] {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    switch (draw_of(*op)) {
      case Draw::kGenerator:
        intercept_with<FillGenerator>(*op);
        break;
      case Draw::kDefaultGenerator:
        intercept_with<LendState>(*op);
        break;
      case Draw::kDropoutState:
        intercept_with<MakeDropoutState>(*op);
        break;
      case Draw::kCallees:
      case Draw::kNothing:
      case Draw::kUnknown:
        break;
    }
  }
  return true;
}();

}  // namespace

Draw draw_of(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (argument(op.schema(), "generator")) return Draw::kGenerator;
  if (without_argument().count(name)) return Draw::kDefaultGenerator;
  if (name == "aten::_cudnn_rnn") return Draw::kDropoutState;
  if (drawing_nothing().count(name)) return Draw::kNothing;
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return Draw::kNothing;
  // Code for all devices, which calls other operators.
  for (const auto key : {c10::DispatchKey::CompositeImplicitAutograd,
                         c10::DispatchKey::CompositeExplicitAutograd}) {
    if (op.hasKernelForDispatchKey(key)) return Draw::kCallees;
  }
  return Draw::kUnknown;
}

}  // namespace gpipe::internal
