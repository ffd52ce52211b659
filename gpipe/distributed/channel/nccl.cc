// Direct transfers between CUDA devices with ProcessGroupNCCL. Linked under
// --config=cuda.
//
// It has run with two ranks on one H100 (docs/results/gpu.md), and not yet on
// several GPUs. The code that uses it (device_transport.cc, channel.cc,
// replica_sums.cc) is tested on simulated accelerators with another
// backend, and nccl_rules.h without any.
#ifdef USE_C10D_NCCL  // false if NCCL's header is missing

#include <ATen/cuda/CUDAContext.h>
#include <c10/util/env.h>
#include <torch/csrc/cuda/nccl.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "gpipe/distributed/channel/nccl_rules.h"
#include "gpipe/distributed/world/backends.h"

namespace gpipe::internal {
namespace {

// Returns the version of NCCL's header that LibTorch was compiled with, which
// is what this function of LibTorch returns: (major << 32) + (minor << 16) +
// patch.
int version_of_libtorch() {
  const uint64_t version = torch::cuda::nccl::version();
  return NCCL_VERSION(static_cast<int>(version >> 32),
                      static_cast<int>(version >> 16 & 0xffff),
                      static_cast<int>(version & 0xffff));
}

class Nccl final : public DeviceTransportBackend {
 public:
  std::string name() const override { return "nccl"; }

  Offer offer(const c10::Device& device) const override {
    const int runtime = c10d::getNcclVersionNumber();
    const cudaDeviceProp* const properties =
        at::cuda::getDeviceProperties(device.index());
    return {
        why_no_nccl({NCCL_VERSION_CODE, version_of_libtorch(), runtime}),
        c10::str("NCCL ", runtime),
        c10::str("the GPU at PCI ", properties->pciDomainID, ":",
                 properties->pciBusID, ":", properties->pciDeviceID, " of ",
                 machine_name()),
        why_no_shared_gpu(runtime, std::getenv("NCCL_MULTI_RANK_GPU_ENABLE"))};
  }

  c10::intrusive_ptr<c10d::Backend> connect(
      c10::intrusive_ptr<c10d::Store> store, int rank, int size,
      const c10::Device&, std::chrono::milliseconds timeout) const override {
    auto options =
        c10d::ProcessGroupNCCL::Options::create(kHighPriorityStreams);
    options->timeout = timeout;
    // NCCL connects in the first transfer. Only a communicator that does not
    // block there can be aborted meanwhile.
    options->config.blocking = 0;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(
        std::move(store), rank, size, std::move(options));
  }
};

[[maybe_unused]] const bool kRegistered = [] {
  // NCCL's watchdog ends the process if a transfer fails or is late. Here the
  // Communicator reports the failure to all ranks and throws. Values set by the
  // user are kept. Set before main(): a thread that reads the environment while
  // it changes may crash.
  for (const char* name :
       {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"}) {
    c10::utils::set_env(name, "0", /*overwrite=*/false);
  }
  register_backend(c10::kCUDA, std::make_unique<Nccl>());
  return true;
}();

}  // namespace
}  // namespace gpipe::internal

#endif
