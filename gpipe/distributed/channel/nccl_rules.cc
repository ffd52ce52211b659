#include "gpipe/distributed/channel/nccl_rules.h"

#include <c10/util/StringUtil.h>

namespace gpipe::internal {
namespace {

// The first version that allows several ranks on one GPU.
constexpr int kSharesGpu = 23100;

std::string text_of(int version) {
  return c10::str(version / 10000, ".", version / 100 % 100, ".",
                  version % 100);
}

}  // namespace

std::string why_no_nccl(const NcclVersions& versions) {
  if (versions.here != versions.libtorch) {
    return c10::str("gpipe was compiled with the header of NCCL ",
                    text_of(versions.here), ", and LibTorch with that of ",
                    text_of(versions.libtorch),
                    ": set NCCL_HOME to the latter and build again");
  }
  if (versions.runtime < versions.here) {
    return c10::str("it runs with NCCL ", text_of(versions.runtime),
                    ", which is older than the header ", text_of(versions.here),
                    " that LibTorch was compiled with: use that version or a "
                    "newer one");
  }
  return "";
}

std::string why_no_shared_gpu(int runtime, const char* variable) {
  if (runtime >= kSharesGpu && variable && std::string(variable) == "1") {
    return "";
  }
  return c10::str("NCCL ", text_of(runtime),
                  " refuses two ranks on one GPU with ",
                  "NCCL_MULTI_RANK_GPU_ENABLE=", variable ? variable : "",
                  ": give each rank a GPU of its own, or set the variable to 1 "
                  "on all ranks and use NCCL ",
                  text_of(kSharesGpu), " or newer");
}

}  // namespace gpipe::internal
