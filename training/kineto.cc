#include "training/kineto.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <unistd.h>

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

// LibTorch itself would mix up the two.
void check_alone() {
  TORCH_CHECK(!torch::profiler::impl::profilerEnabled(),
              "a profiler is at work on this thread already; stop it first");
}

[[noreturn]] void fail(const std::string& path, int error) {
  TORCH_CHECK(false, "cannot write the trace ", path, ": ",
              std::strerror(error));
}

}  // namespace

bool KinetoTrace::is_available() {
  // Headers do not know it: the flag that they ask is that of LibTorch's build.
  return dlsym(RTLD_DEFAULT, "libkineto_init") != nullptr;
}

KinetoTrace::KinetoTrace(std::string path)
    : path_(std::move(path)),
      part_(path_ + ".tmp." + std::to_string(getpid())) {
  TORCH_CHECK(is_available(),
              "this LibTorch has been built without Kineto; "
              "TrainOptions().timeline(true) with training/trace.h needs none");
  check_alone();
  // Kineto itself says on stderr only that it could not write.
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
}

KinetoTrace::~KinetoTrace() {
  try {
    stop();
  } catch (const std::exception&) {
    // As announced.
  }
}

void KinetoTrace::stop() {
  if (!std::exchange(running_, false)) return;
  profiler::disableProfiler()->save(part_);
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
      "NVTX ranges need a LibTorch with CUDA, which this program is not "
      "linked to (--config=cuda)");
  check_alone();
  profiler::enableProfiler(ProfilerConfig(ProfilerState::NVTX), {}, scopes());
}

NvtxRanges::~NvtxRanges() {
  try {
    profiler::disableProfiler();
  } catch (const std::exception&) {
    // Somebody else has ended it.
  }
}

}  // namespace gpipe
