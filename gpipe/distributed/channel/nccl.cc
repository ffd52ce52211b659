// Direct transfers between CUDA devices with ProcessGroupNCCL. Linked under
// --config=cuda.
//
// UNTESTED: this file compiles and links, but no machine with two GPUs was
// available, and NCCL refuses two ranks on one GPU. The code that uses it
// (device_transport.cc, sender.cc, receiver.cc, reduce.cc) is tested on
// simulated accelerators with another backend.
#ifdef USE_C10D_NCCL  // false if NCCL's header is missing

#include <ATen/cuda/CUDAContext.h>
#include <c10/util/env.h>

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "gpipe/distributed/channel/device_transport.h"
#include "gpipe/text/host_name.h"

namespace gpipe::internal {
namespace {

class Nccl final : public DeviceTransportBackend {
 public:
  Offer offer(const c10::Device& device) const override {
    const int linked = c10d::getNcclVersionNumber();
    // Options contain a struct of NCCL, whose size depends on the version.
    if (linked != NCCL_VERSION_CODE) {
      return {c10::str("it was compiled with the headers of NCCL ",
                       NCCL_VERSION_CODE, ", but runs with NCCL ", linked),
              "", ""};
    }
    const cudaDeviceProp* const properties =
        at::cuda::getDeviceProperties(device.index());
    return {"", c10::str("NCCL ", linked),
            c10::str("the GPU at PCI ", properties->pciDomainID, ":",
                     properties->pciBusID, ":", properties->pciDeviceID, " of ",
                     host_name())};
  }

  c10::intrusive_ptr<c10d::Backend> connect(
      c10::intrusive_ptr<c10d::Store> store, int rank, const c10::Device&,
      std::chrono::milliseconds timeout) const override {
    // NCCL's watchdog ends the process if a transfer fails or is late. Here the
    // World reports the failure to all ranks and throws. Values set by the user
    // are kept.
    c10::utils::set_env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0",
                        /*overwrite=*/false);
    c10::utils::set_env("TORCH_NCCL_ENABLE_MONITORING", "0",
                        /*overwrite=*/false);
    auto options =
        c10d::ProcessGroupNCCL::Options::create(kHighPriorityStreams);
    options->timeout = timeout;
    // NCCL connects in the first transfer. Only a communicator that does not
    // block there can be aborted meanwhile.
    options->config.blocking = 0;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank,
                                                       2, std::move(options));
  }
};

[[maybe_unused]] const bool kRegistered = [] {
  register_device_transport(c10::kCUDA, std::make_unique<Nccl>());
  return true;
}();

}  // namespace
}  // namespace gpipe::internal

#endif
