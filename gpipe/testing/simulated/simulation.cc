#include "gpipe/testing/simulated/simulation.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

// Declarations of OpenMP, and of MKL if LibTorch has it. at::set_num_threads()
// would also change the number for threads that are created later.
extern "C" {
void omp_set_num_threads(int threads);
[[gnu::weak]] int MKL_Set_Num_Threads_Local(int threads);
}

namespace gpipe::simulated {
namespace {

constexpr std::size_t kPool = 32;

std::string to_string(const c10::Stream& stream) {
  return "hpu:" + std::to_string(stream.device_index()) +
         (stream.id() == 0 ? " default stream"
                           : " stream " + std::to_string(stream.id()));
}

std::int64_t written_bytes(const std::vector<Access>& accesses) {
  std::int64_t bytes = 0;
  for (const Access& each : accesses) {
    if (each.write) bytes += static_cast<std::int64_t>(each.end - each.begin);
  }
  return bytes;
}

}  // namespace

void Mark::reach() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    time_ = std::chrono::steady_clock::now();
    reached_ = true;
  }
  changed_.notify_all();
}

void Mark::wait() const {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return reached_.load(); });
}

Simulation& Simulation::get() {
  // Never destroyed, because static tensors may outlive other objects.
  static auto* const simulation = new Simulation();
  return *simulation;
}

Simulation::Line& Simulation::line(const c10::Stream& stream) {
  const auto key = std::make_pair(stream.device_index(), stream.id());
  const auto found = lines_.find(key);
  if (found != lines_.end()) return found->second;
  const std::size_t number = lines_.size();
  auto queue = std::make_unique<Queue>(number, [] {
    // Operators use CPU memory and build no graph, on this thread only.
    at::get_num_threads();
    omp_set_num_threads(1);
    if (&MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(1);
    thread_local std::optional<at::AutoDispatchBelowADInplaceOrView> guard;
    guard.emplace();
  });
  queue->set_delays(delays_);
  order_.name_stream(number, to_string(stream));
  return lines_.emplace(key, Line{number, std::move(queue)}).first->second;
}

c10::Stream Simulation::new_stream(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device),
                     ++next_stream_[device]);
}

c10::Stream Simulation::pool_stream(c10::DeviceIndex device,
                                    bool high_priority) {
  std::lock_guard<std::mutex> lock(mutex_);
  Pool& pool = pools_[device][high_priority];
  const std::size_t next = pool.next++ % kPool;
  if (next == pool.streams.size()) {
    pool.streams.push_back(++next_stream_[device]);
  }
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device),
                     pool.streams[next]);
}

void Simulation::rethrow() {
  std::exception_ptr error;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    error = std::exchange(error_, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

void Simulation::enqueue(const c10::Stream& stream, Work work) {
  rethrow();
  failing(Operation::kLaunch).pass();
  if (auto fail = failing(Operation::kWork).take()) work.run = std::move(fail);
  wait_before_launch(stream, work.name);
  ++launches_;
  // "a copy" alone is within a device.
  if (work.name.rfind("a copy ", 0) == 0) ++copies_;
  enqueue_always(stream, std::move(work));
}

void Simulation::wait_before_launch(const c10::Stream& stream,
                                    const std::string& name) {
  Queue* queue = nullptr;
  std::size_t most = 0;
  bool loads = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    most = costs_.most_launches;
    queue = line(stream).queue.get();
    loads = costs_.loads_operators &&
            loaded_.emplace(stream.device_index(), name).second;
  }
  if (loads) quiesce(stream.device_index());
  if (most > 0) queue->wait_until_below(most);
}

void Simulation::set_host_costs(const HostCosts& costs) {
  std::lock_guard<std::mutex> lock(mutex_);
  costs_ = costs;
  loaded_.clear();
}

void Simulation::pay_for_event() {
  double seconds = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    seconds = costs_.event_seconds;
  }
  if (seconds > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
}

void Simulation::enqueue_always(const c10::Stream& stream, Work work) {
  std::lock_guard<std::mutex> lock(mutex_);
  Line& line = this->line(stream);
  const auto microbatch = microbatch_ ? microbatch_() : std::nullopt;
  order_.operate(line.number, work.name, microbatch, work.accesses);
  trace_.push_back({std::move(work.name), stream, work.other, microbatch,
                    written_bytes(work.accesses)});
  line.queue->push(
      [this, run = std::move(work.run)] {
        try {
          run();
        } catch (...) {
          std::lock_guard<std::mutex> lock(mutex_);
          if (!error_) error_ = std::current_exception();
        }
      },
      /*delayed=*/true);
}

std::shared_ptr<Mark> Simulation::record_locked(const c10::Stream& stream) {
  Line& line = this->line(stream);
  auto mark = std::make_shared<Mark>(order_.record(line.number));
  line.queue->push_signal([mark] { mark->reach(); });
  return mark;
}

std::shared_ptr<Mark> Simulation::record(const c10::Stream& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  return record_locked(stream);
}

void Simulation::block(const c10::Stream& stream, std::shared_ptr<Mark> mark) {
  std::lock_guard<std::mutex> lock(mutex_);
  Line& line = this->line(stream);
  order_.wait(line.number, mark->clock());
  line.queue->push([mark = std::move(mark)] { mark->wait(); });
}

bool Simulation::idle(const c10::Stream& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  return line(stream).queue->idle();
}

void Simulation::host_wait(const Mark& mark) {
  ++host_waits_;
  mark.wait();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    order_.host_waited(mark.clock());
  }
  rethrow();
}

void Simulation::host_wait(const c10::Stream& stream) {
  host_wait(*record(stream));
}

std::vector<std::shared_ptr<Mark>> Simulation::record_all(
    c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<Mark>> marks;
  for (const auto& [key, line] : lines_) {
    if (key.first != device) continue;
    marks.push_back(record_locked(c10::Stream(
        c10::Stream::UNSAFE, c10::Device(kDeviceType, device), key.second)));
  }
  return marks;
}

void Simulation::host_wait(c10::DeviceIndex device) {
  ++host_waits_;
  for (const auto& mark : record_all(device)) {
    mark->wait();
    std::lock_guard<std::mutex> lock(mutex_);
    order_.host_waited(mark->clock());
  }
  rethrow();
}

void Simulation::quiesce(c10::DeviceIndex device) {
  for (const auto& mark : record_all(device)) mark->wait();
}

void Simulation::add_block(void* begin, std::size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  order_.add_block(address, address + bytes);
}

void Simulation::remove_block(void* begin) {
  std::lock_guard<std::mutex> lock(mutex_);
  order_.remove_block(reinterpret_cast<std::uintptr_t>(begin));
}

std::vector<std::shared_ptr<Mark>> Simulation::release_block(
    void* begin, const c10::Stream& owner,
    const std::vector<c10::Stream>& recorded) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::size_t> numbers;
  std::vector<std::shared_ptr<Mark>> marks;
  for (const c10::Stream& stream : recorded) {
    numbers.push_back(line(stream).number);
    marks.push_back(record_locked(stream));
  }
  order_.release_block(reinterpret_cast<std::uintptr_t>(begin),
                       line(owner).number, numbers);
  return marks;
}

void Simulation::set_delays(const Delays& delays) {
  std::lock_guard<std::mutex> lock(mutex_);
  delays_ = delays;
  for (auto& [key, line] : lines_) line.queue->set_delays(delays);
}

void Simulation::set_microbatch(std::optional<std::int64_t> (*microbatch)()) {
  std::lock_guard<std::mutex> lock(mutex_);
  microbatch_ = microbatch;
}

std::vector<std::string> Simulation::take_races() {
  std::lock_guard<std::mutex> lock(mutex_);
  return order_.take_races();
}

std::vector<Given> Simulation::take_trace() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(trace_, {});
}

namespace {

std::atomic<bool> contexts[kDevices];

}  // namespace

void make_context(c10::DeviceIndex device) { contexts[device] = true; }

bool has_context(c10::DeviceIndex device) { return contexts[device]; }

std::vector<c10::DeviceIndex> devices_with_context() {
  std::vector<c10::DeviceIndex> devices;
  for (c10::DeviceIndex k = 0; k < kDevices; ++k) {
    if (has_context(k)) devices.push_back(k);
  }
  return devices;
}

void forget_contexts() {
  for (std::atomic<bool>& each : contexts) each = false;
}

namespace {

thread_local c10::DeviceIndex device_here = 0;
thread_local c10::StreamId stream_here[kDevices] = {};

c10::Stream stream(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device), id);
}

}  // namespace

void check_index(c10::DeviceIndex device) {
  TORCH_CHECK(0 <= device && device < kDevices,
              "there is no device hpu:", static_cast<int>(device),
              " (simulated accelerators: ", static_cast<int>(kDevices), ")");
}

c10::DeviceIndex current_device() { return device_here; }

c10::DeviceIndex exchange_current_device(c10::DeviceIndex device) {
  check_index(device);
  if (device != device_here) make_context(device);
  return std::exchange(device_here, device);
}

void restore_current_device(c10::DeviceIndex device) noexcept {
  device_here = device;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  if (device < 0) device = device_here;
  check_index(device);
  return stream(device, stream_here[device]);
}

c10::Stream exchange_current_stream(const c10::Stream& next) {
  const c10::DeviceIndex device = next.device_index();
  check_index(device);
  return stream(device, std::exchange(stream_here[device], next.id()));
}

GeneratorImpl::GeneratorImpl(c10::DeviceIndex device) {
  device_ = c10::Device(kDeviceType, device);
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device_.index());
  copy->set_state(*get_state());
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* const generators = [] {
    auto* all = new std::vector<at::Generator>();
    for (c10::DeviceIndex k = 0; k < kDevices; ++k) {
      all->push_back(at::make_generator<GeneratorImpl>(k));
    }
    return all;
  }();
  return (*generators)[device < 0 ? current_device() : device];
}

at::Generator on_cpu(const at::Generator& generator) {
  at::Generator copy = at::make_generator<at::CPUGeneratorImpl>();
  copy.set_state(generator.get_state());
  return copy;
}

}  // namespace gpipe::simulated
