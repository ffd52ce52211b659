#include "training/kineto.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <absl/cleanup/cleanup.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <unordered_set>
#include <utility>

namespace gpipe {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

const std::unordered_set<at::RecordScope>& scopes() {
  static const std::unordered_set<at::RecordScope> kScopes = {
      at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
      at::RecordScope::USER_SCOPE};
  return kScopes;
}

// Whether a KinetoTrace or NvtxRanges records, on any thread.
std::atomic<bool> is_recording{false};

// Begins the only recording of the process. LibTorch itself does not detect a
// second one and would mix up both profilers.
void begin_recording() {
  TORCH_CHECK(!torch::profiler::impl::profilerEnabled(),
              "a profiler already runs on this thread; stop it first");
  TORCH_CHECK(!is_recording.exchange(true),
              "a profiler already runs on another thread; stop it first");
}

void end_recording() { is_recording = false; }

[[noreturn]] void fail(const std::string& path, int error) {
  TORCH_CHECK(false, "cannot write the trace ", path, ": ",
              std::strerror(error));
}

}  // namespace

bool KinetoTrace::is_available() {
  // The headers cannot tell: they test a macro that only LibTorch's own build
  // defines.
  return dlsym(RTLD_DEFAULT, "libkineto_init") != nullptr;
}

KinetoTrace::KinetoTrace(std::string path)
    : path_(std::move(path)),
      part_(path_ + ".tmp." + std::to_string(getpid())) {
  TORCH_CHECK(is_available(),
              "this LibTorch has been built without Kineto; "
              "use TrainOptions().timeline(true) and training/trace.h instead");
  begin_recording();
  absl::Cleanup end = end_recording;
  // Kineto itself reports only on stderr that it could not write.
  const int file = open(part_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) fail(path_, errno);
  close(file);
  try {
    const ProfilerConfig config(ProfilerState::KINETO);
    std::set<ActivityType> activities = {ActivityType::CPU};
    if (at::hasCUDA()) activities.insert(ActivityType::CUDA);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities, scopes());
  } catch (...) {
    std::remove(part_.c_str());
    throw;
  }
  running_ = true;
  std::move(end).Cancel();
}

KinetoTrace::~KinetoTrace() {
  try {
    stop();
  } catch (const std::exception&) {
    // The header says that the destructor ignores errors.
  }
}

void KinetoTrace::stop() {
  if (!std::exchange(running_, false)) return;
  {
    const absl::Cleanup end = end_recording;
    absl::Cleanup remove = [this] { std::remove(part_.c_str()); };
    profiler::disableProfiler()->save(part_);
    std::move(remove).Cancel();
  }
  struct stat written {};
  const bool is_there = stat(part_.c_str(), &written) == 0;
  if (!is_there || written.st_size == 0) {
    const int error = is_there ? EIO : errno;
    std::remove(part_.c_str());
    fail(path_, error);
  }
  if (std::rename(part_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    std::remove(part_.c_str());
    fail(path_, error);
  }
}

bool NvtxRanges::is_available() {
  return torch::profiler::impl::cudaStubs()->enabled();
}

NvtxRanges::NvtxRanges() {
  TORCH_CHECK(
      is_available(),
      "NVTX ranges need a LibTorch with CUDA, but this program is not linked "
      "to one; build it with --config=cuda");
  begin_recording();
  absl::Cleanup end = end_recording;
  profiler::enableProfiler(ProfilerConfig(ProfilerState::NVTX), {}, scopes());
  std::move(end).Cancel();
}

NvtxRanges::~NvtxRanges() {
  const absl::Cleanup end = end_recording;
  try {
    profiler::disableProfiler();
  } catch (const std::exception&) {
    // Other code has already stopped the profiler.
  }
}

}  // namespace gpipe
