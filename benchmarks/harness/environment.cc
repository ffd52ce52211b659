#include "benchmarks/harness/environment.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <gflags/gflags.h>
#include <sched.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace gpipe::benchmarks {

// What `--stamp --embed_label=<commit>` gave to Bazel (commit.cc): "" if there
// is no label, "redacted" without --stamp.
extern const char kCommit[];

namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

// Returns the cores that this process may use. In a container with a CPU set
// they are fewer than the machine has.
cpu_set_t usable_set() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    CPU_ZERO(&set);
    for (unsigned k = 0; k < std::thread::hardware_concurrency(); ++k) {
      CPU_SET(k, &set);
    }
  }
  return set;
}

int usable_cores() {
  const cpu_set_t set = usable_set();
  return CPU_COUNT(&set);
}

std::string accelerators() {
  const int count = at::accelerator::deviceCount();
  if (count == 0) return "none";
  const auto type = at::accelerator::getAccelerator(/*checked=*/true).value();
  std::string text = std::to_string(count) + " x " +
                     c10::DeviceTypeName(type, /*lower_case=*/true);
  // The question makes a context on the device, which only one that is used may
  // have.
  if (count > 1) return text;
  try {
    const auto total = at::accelerator::getMemoryInfo(0).second;
    text += ", " + std::to_string(total >> 20) + " MiB";
  } catch (const std::exception&) {
    // Not every backend reports its memory.
  }
  return text;
}

// Returns the ticks that the usable cores together have spent busy and idle
// since the machine started.
std::pair<double, double> busy_and_idle_ticks() {
  const cpu_set_t set = usable_set();
  std::ifstream file("/proc/stat");
  double busy = 0, idle = 0, ticks = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int core = 0;
    if (!(words >> name) || !name.starts_with("cpu")) break;
    // The first line, "cpu", is the sum of all.
    if (!absl::SimpleAtoi(name.substr(3), &core) || !CPU_ISSET(core, &set)) {
      continue;
    }
    // user, nice, system, idle, waiting for a disk, interrupts, stolen, ...
    for (int column = 0; column < 8 && words >> ticks; ++column) {
      (column == 3 || column == 4 ? idle : busy) += ticks;
    }
  }
  return {busy, idle};
}

// Returns the number of usable cores that are busy while this program sleeps.
// The load average would still include a build that has just ended.
double busy_cores() {
  const auto [busy, idle] = busy_and_idle_ticks();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto [busy_after, idle_after] = busy_and_idle_ticks();
  const double all = busy_after - busy + idle_after - idle;
  return all > 0 ? (busy_after - busy) / all * usable_cores() : 0;
}

// Returns the build options that the compiler defines as macros.
std::string build() {
#ifdef __OPTIMIZE__
  std::string text = "optimised";
#else
  std::string text = "not optimised";
#endif
#ifndef NDEBUG
  text += ", with assertions";
#endif
#if defined(__SANITIZE_ADDRESS__)
  text += ", address sanitizer";
#elif defined(__SANITIZE_THREAD__)
  text += ", thread sanitizer";
#endif
  return text;
}

// Returns this project's flags that differ from their defaults. Replaces the
// home folder in paths by "~", so that they do not name the user.
std::string flags() {
  std::vector<gflags::CommandLineFlagInfo> all;
  gflags::GetAllFlags(&all);
  std::string text;
  for (const auto& flag : all) {
    const bool ours =
        flag.filename.find("benchmarks/") != std::string::npos ||
        flag.filename.find("training/program/") != std::string::npos;
    if (!ours || flag.current_value == flag.default_value) continue;
    if (!text.empty()) text += " ";
    text += "--" + flag.name + "=" + flag.current_value;
  }
  const char* home = std::getenv("HOME");
  const std::string folder = home ? home : "";
  if (folder.size() < 2) return text;
  return absl::StrReplaceAll(text, {{folder, "~"}});
}

// Adds the versions of CUDA and cuDNN that LibTorch was built for. CUDA's
// number is 1000 times the major version plus 10 times the minor one. cuDNN's
// number is added as it is.
void add_cuda(std::vector<std::pair<std::string, std::string>>* facts) {
  if (!at::hasCUDA()) return;
  const auto& hooks = at::detail::getCUDAHooks();
  const long cuda = hooks.versionCUDART();
  facts->emplace_back("cuda", std::to_string(cuda / 1000) + "." +
                                  std::to_string(cuda % 1000 / 10));
  if (hooks.hasCuDNN()) {
    facts->emplace_back("cudnn", std::to_string(hooks.versionCuDNN()));
  }
}

std::string date() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(),
                          absl::UTCTimeZone());
}

}  // namespace

std::string Environment::warning() const {
  if (load <= 0.25 * cores) return "";
  return absl::StrFormat(
      "Other work kept %.1f of %d cores busy at the start: do not trust these "
      "times.",
      load, cores);
}

std::string Environment::to_string() const {
  return absl::StrJoin(facts, "\n", absl::PairFormatter(": "));
}

std::string Environment::sentence() const {
  return absl::StrJoin(facts, "; ", absl::PairFormatter(": "));
}

Environment describe_environment() {
  Environment environment;
  environment.cores = usable_cores();
  auto& facts = environment.facts;
  facts.emplace_back("cpu", cpu_model());
  facts.emplace_back("cores", std::to_string(environment.cores));
  facts.emplace_back("threads", std::to_string(at::get_num_threads()));
  environment.load = busy_cores();
  facts.emplace_back("load", absl::StrFormat("%.2f", environment.load));
  facts.emplace_back("accelerators", accelerators());
  facts.emplace_back("libtorch", TORCH_VERSION);
  add_cuda(&facts);
  facts.emplace_back("cpu kernels", at::get_cpu_capability());
#ifdef __clang__
  facts.emplace_back("compiler", __VERSION__);
#else
  facts.emplace_back("compiler", "gcc " __VERSION__);
#endif
  facts.emplace_back("build", build());
  utsname system{};
  if (uname(&system) == 0) {
    facts.emplace_back("kernel",
                       std::string(system.sysname) + " " + system.release);
  }
  if (const std::string text = kCommit; text != "" && text != "redacted") {
    facts.emplace_back("commit", text);
  }
  if (const std::string text = flags(); !text.empty()) {
    facts.emplace_back("flags", text);
  }
  facts.emplace_back("date", date());
  return environment;
}

}  // namespace gpipe::benchmarks
