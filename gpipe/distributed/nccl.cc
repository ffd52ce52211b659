// Direct transfers between CUDA devices: ProcessGroupNCCL. Linked under
// --config=cuda.
//
// UNTESTED: it compiles and links; no machine with two GPUs has been at hand,
// and NCCL refuses two ranks on one. What it is a part of (direct.cc, link.cc,
// reduce.cc) is tested on simulated accelerators, with another engine.
#ifdef USE_C10D_NCCL  // or there is no header of NCCL

#include <ATen/cuda/CUDAContext.h>
#include <c10/util/env.h>

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "gpipe/distributed/direct.h"
#include "gpipe/text/host_name.h"

namespace gpipe {
namespace {

class Nccl final : public DirectEngine {
 public:
  Offer offer(const c10::Device& device) const override {
    const int linked = c10d::getNcclVersionNumber();
    // Options hold a struct of NCCL's, whose size changes with its version.
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
    // Its watchdog ends the process where a transfer fails or is late; here the
    // world tells all ranks, and throws. What the user has set stands.
    c10::utils::set_env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0",
                        /*overwrite=*/false);
    c10::utils::set_env("TORCH_NCCL_ENABLE_MONITORING", "0",
                        /*overwrite=*/false);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank,
                                                       2, std::move(options));
  }
};

[[maybe_unused]] const bool kRegistered = [] {
  register_direct_engine(c10::kCUDA, std::make_unique<Nccl>());
  return true;
}();

}  // namespace
}  // namespace gpipe

#endif
