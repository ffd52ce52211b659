#include "gpipe/distributed/channel/self_test.h"

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "gpipe/base/threads/background_thread.h"
#include "gpipe/distributed/channel/device_groups.h"
#include "gpipe/distributed/world/failure_conversion.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {
namespace {

using Clock = std::chrono::steady_clock;

// Larger than NCCL's buffers for small messages, and not a multiple of them.
constexpr int64_t kBytes = (int64_t{1} << 20) + 1;
constexpr int kTransfers = 3;  // in each direction and check

// The ranks of both ends in a group, which is for one direction.
constexpr int kSender = 0, kReceiver = 1;

constexpr char kTimeout[] = "it did not end in the time for the self-test";

// Returns the bytes that `rank` sends: different ones for each rank and `k`.
at::Tensor bytes_of(int rank, int k) {
  return at::arange(kBytes, at::kLong)
      .mul_(7 + 2 * rank)
      .add_(k)
      .remainder_(251)
      .to(at::kByte);
}

}  // namespace

// What the threads of a self-test share. They keep it, because a thread that
// hangs in a transfer outlives the SelfTest.
class SelfTest::Run : public std::enable_shared_from_this<Run> {
 public:
  Run(const DeviceTransportBackend& backend,
      c10::intrusive_ptr<c10d::Store> store,
      std::shared_ptr<std::atomic<bool>> stopped, int rank,
      const c10::Device& device)
      : backend_(backend),
        store_(std::move(store)),
        stopped_(std::move(stopped)),
        rank_(rank),
        device_(device) {}

  std::string run(std::chrono::milliseconds limit,
                  const std::atomic<bool>& failed) {
    deadline_ = Clock::now() + limit;
    failed_ = &failed;
    std::string why = check("transfers in both directions at once",
                            [this] { both_directions(/*wait=*/false); });
    if (why.empty()) {
      why = check("transfers while the host waits for the whole device",
                  [this] { both_directions(/*wait=*/true); });
    }
    if (why.empty()) {
      why = check("a receive that is aborted", [this] { aborted_receive(); });
    }
    if (!why.empty()) {
      *stopped_ = true;
      tell_failure();
      close_all(groups(), &c10d::Backend::abort).wait_for(kPatience);
    }
    return why;
  }

  void drop() {
    *stopped_ = true;
    std::vector<DeviceGroup> last = groups();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      groups_ = {};
    }
    close_all(std::move(last), &c10d::Backend::abort).wait_for(kPatience);
    // Their tasks keep this object.
    for (auto& each : std::exchange(unfinished_, {})) each.wait_for(kPatience);
    // The memory of an abandoned transfer is free when the device is. If it
    // never is, the thread keeps the memory.
    start([this] {
      wait_for_device();
      std::lock_guard<std::mutex> lock(mutex_);
      kept_.clear();
    }).wait_for(kPatience);
  }

 private:
  // Runs `part` on a thread of its own. Returns why it has failed; empty if it
  // has not.
  std::string check(const char* name, std::function<void()> part) {
    std::future<std::string> result = start(std::move(part));
    std::string why;
    while (result.wait_for(kCheckInterval) != std::future_status::ready) {
      if (Clock::now() >= deadline_ || *failed_) {
        why = kTimeout;
      } else if (has_other_failed()) {
        why = "the other rank has failed";
      } else {
        continue;
      }
      unfinished_.push_back(std::move(result));
      return c10::str(name, ": ", why);
    }
    why = result.get();
    return why.empty() ? why : c10::str(name, ": ", why);
  }

  // Tells the other rank, which then need not wait until its time is over. A
  // store that has failed is reported by the world.
  void tell_failure() {
    try {
      store_->set(c10::str("failed/", rank_), std::vector<uint8_t>{1});
    } catch (const std::exception&) {
    }
  }
  bool has_other_failed() {
    try {
      return store_->check({c10::str("failed/", 1 - rank_)});
    } catch (const std::exception&) {
      return true;
    }
  }

  std::future<std::string> start(std::function<void()> part) {
    std::packaged_task<std::string()> task(
        [self = shared_from_this(), part = std::move(part)]() -> std::string {
          try {
            part();
          } catch (const std::exception& error) {
            return reason_of(error);
          }
          return "";
        });
    auto result = task.get_future();
    background_thread(std::move(task)).detach();
    return result;
  }

  // One thread sends to the other rank, while this one receives.
  void both_directions(bool wait) {
    const int phase = phase_++;
    auto sent = start([this, phase, wait] {
      for (int k = 0; k < kTransfers; ++k) {
        const at::Tensor bytes = bytes_of(rank_, k).to(device_);
        Event::record(device_).wait(c10::Device(c10::kCPU));
        transfer(rank_, phase, k, wait, bytes);
      }
    });
    const auto received = [&] {
      for (int k = 0; k < kTransfers; ++k) {
        const at::Tensor bytes =
            at::empty({kBytes}, at::TensorOptions(device_).dtype(at::kByte));
        transfer(1 - rank_, phase, k, wait, bytes);
        TORCH_CHECK(bytes.cpu().equal(bytes_of(1 - rank_, k)), "message ", k,
                    " of ", kBytes, " bytes arrived with wrong bytes");
      }
    };
    std::exception_ptr error;
    try {
      received();
    } catch (...) {
      error = std::current_exception();
    }
    const std::string why = sent.get();
    if (error) std::rethrow_exception(error);
    TORCH_CHECK(why.empty(), why);
  }

  // Transfers by the rules of DeviceTransport::transfer().
  void transfer(int from, int phase, int k, bool wait,
                const at::Tensor& bytes) {
    const std::string key = c10::str(from, "/", phase, "/", k);
    std::vector<at::Tensor> list{keep(bytes)};
    const auto run = [&] {
      // Kept: drop() may run while this thread hangs in a transfer.
      const DeviceGroup ends = group(from);
      auto work = from == rank_ ? ends->send(list, kReceiver, 0)
                                : ends->recv(list, kSender, 0);
      if (wait) wait_for_device();
      HostWork(std::move(work)).wait(left());
    };
    if (rank_ == 0) {
      await(key + "/here");
      const Turn turn(device_, [this] { check_time(); });
      store_->set(key + "/go", std::vector<uint8_t>{1});
      run();
    } else {
      store_->set(key + "/here", std::vector<uint8_t>{1});
      await(key + "/go");
      const Turn turn(device_, [this] { check_time(); });
      run();
    }
  }

  // Both ranks receive what nobody sends, and abort. Then the devices must be
  // free.
  void aborted_receive() {
    const Turn turn(device_, [this] { check_time(); });
    std::vector<at::Tensor> list{
        keep(at::empty({kBytes}, at::TensorOptions(device_).dtype(at::kByte)))};
    const auto work = group(1 - rank_)->recv(list, kSender, 0);
    store_->set(c10::str("posted/", rank_), std::vector<uint8_t>{1});
    await(c10::str("posted/", 1 - rank_));
    TORCH_CHECK(!work->isCompleted(), "it ended although nothing was sent");
    close_all(groups(), &c10d::Backend::abort);
    wait_for_device();
  }

  // Keeps `bytes` as long as this object, because the device may still access
  // them when the host has given up a transfer.
  at::Tensor keep(const at::Tensor& bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    kept_.push_back(bytes);
    return bytes;
  }

  void wait_for_device() const {
    c10::impl::VirtualGuardImpl(device_.type())
        .synchronizeDevice(device_.index());
  }

  // Returns the group for the direction; connects if there is none.
  DeviceGroup group(int from) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (groups_[from]) return groups_[from];
    }
    auto group = backend_.connect(c10::make_intrusive<c10d::PrefixStore>(
                                      c10::str("group/", from), store_),
                                  rank_ == from ? kSender : kReceiver,
                                  /*size=*/2, device_, left());
    std::lock_guard<std::mutex> lock(mutex_);
    check_time();
    groups_[from] = group;
    return group;
  }

  std::vector<DeviceGroup> groups() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<DeviceGroup> list;
    for (const DeviceGroup& each : groups_) {
      if (each) list.push_back(each);
    }
    return list;
  }

  void await(const std::string& key) { store_->wait({key}, left()); }

  // Returns the time that is left, at least a millisecond.
  std::chrono::milliseconds left() const {
    check_time();
    return std::max(std::chrono::milliseconds(1),
                    std::chrono::duration_cast<std::chrono::milliseconds>(
                        deadline_ - Clock::now()));
  }
  void check_time() const {
    if (*stopped_ || Clock::now() >= deadline_) {
      throw std::runtime_error(kTimeout);
    }
  }

  const DeviceTransportBackend& backend_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<std::atomic<bool>> stopped_;
  const int rank_;
  const c10::Device device_;
  Clock::time_point deadline_;
  const std::atomic<bool>* failed_ = nullptr;  // read in run() only
  int phase_ = 0;                              // of both_directions()
  std::vector<std::future<std::string>> unfinished_;

  std::mutex mutex_;
  std::array<DeviceGroup, 2> groups_;  // by sender
  std::vector<at::Tensor> kept_;
};

SelfTest::SelfTest(const DeviceTransportBackend& backend,
                   c10::intrusive_ptr<c10d::Store> store,
                   std::shared_ptr<std::atomic<bool>> stopped, int rank,
                   const c10::Device& device)
    : run_(std::make_shared<Run>(backend, std::move(store), std::move(stopped),
                                 rank, device)) {}

SelfTest::~SelfTest() { run_->drop(); }

std::string SelfTest::run(std::chrono::milliseconds limit,
                          const std::atomic<bool>& failed) {
  return run_->run(limit, failed);
}

}  // namespace gpipe::internal
