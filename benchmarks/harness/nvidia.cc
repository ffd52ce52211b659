#include "benchmarks/harness/nvidia.h"

#include <dlfcn.h>

#include <array>
#include <map>

namespace gpipe::benchmarks {
namespace {

// A buffer for the texts of NVML, which have at most 96 bytes. As nvml.h says,
// NVML's functions return 0 for success and a device is a pointer.
using Text = std::array<char, 96>;

// NVML: loaded by the constructor, closed by the destructor.
class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
    auto* const init = find<int()>("nvmlInit_v2");
    ready_ = init != nullptr && init() == 0;
  }
  ~Nvml() {
    if (auto* const stop = find<int()>("nvmlShutdown"); ready_ && stop) stop();
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::string driver() const {
    auto* const get = find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
    Text text{};
    const bool known =
        ready_ && get != nullptr && get(text.data(), text.size()) == 0;
    return known ? text.data() : "";
  }

  // Returns the number of GPUs with each name.
  std::map<std::string, int> gpus() const {
    std::map<std::string, int> gpus;
    auto* const get_count = find<int(unsigned*)>("nvmlDeviceGetCount_v2");
    auto* const get_device =
        find<int(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
    auto* const get_name =
        find<int(void*, char*, unsigned)>("nvmlDeviceGetName");
    unsigned count = 0;
    if (!ready_ || get_count == nullptr || get_device == nullptr ||
        get_name == nullptr || get_count(&count) != 0) {
      return gpus;
    }
    for (unsigned i = 0; i < count; ++i) {
      void* device = nullptr;
      Text text{};
      if (get_device(i, &device) == 0 &&
          get_name(device, text.data(), text.size()) == 0) {
        ++gpus[text.data()];
      }
    }
    return gpus;
  }

 private:
  template <typename Function>
  Function* find(const char* name) const {
    return library_ == nullptr
               ? nullptr
               : reinterpret_cast<Function*>(dlsym(library_, name));
  }

  void* library_;
  bool ready_ = false;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> nvidia_facts() {
  const Nvml nvml;
  std::vector<std::pair<std::string, std::string>> facts;
  for (const auto& [name, count] : nvml.gpus()) {
    facts.emplace_back("gpu", std::to_string(count) + " x " + name);
  }
  if (const auto driver = nvml.driver(); !driver.empty()) {
    facts.emplace_back("driver", driver);
  }
  return facts;
}

}  // namespace gpipe::benchmarks
