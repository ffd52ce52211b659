// The rules by which a program may use NCCL. No CUDA.
#pragma once

#include <c10/util/StringUtil.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "gpipe/base/text.h"

namespace gpipe::internal {

// Versions of NCCL as NCCL_VERSION_CODE has them: 22809 is 2.28.9.
struct NcclVersions {
  int here = 0;      // of the header that gpipe was compiled with
  int libtorch = 0;  // of the header that LibTorch was compiled with
  int runtime = 0;   // of the library that runs
};

// Returns "2.28.9" for 22809.
inline std::string nccl_version(int version) {
  return c10::str(version / 10000, ".", version / 100 % 100, ".",
                  version % 100);
}

// Returns why NCCL cannot be used, with what to do; empty if it can.
//
// gpipe and LibTorch exchange a struct of NCCL's header whose size depends on
// the version, so both need the same header. NCCL's library also serves
// programs that were compiled with an older header.
inline std::string why_no_nccl(const NcclVersions& versions) {
  if (versions.here != versions.libtorch) {
    return c10::str("gpipe was compiled with the header of NCCL ",
                    nccl_version(versions.here), ", and LibTorch with that of ",
                    nccl_version(versions.libtorch),
                    ": set NCCL_HOME to the latter and build again");
  }
  if (versions.runtime < versions.here) {
    return c10::str("it runs with NCCL ", nccl_version(versions.runtime),
                    ", which is older than the header ",
                    nccl_version(versions.here),
                    " that LibTorch was compiled with: use that version or a "
                    "newer one");
  }
  return "";
}

// Returns the name by which NCCL tells this machine from others: NCCL_HOSTID if
// it is set, or that of the host, and the id of its boot. Machines of one image
// may have one host name, and containers of one machine have one boot.
inline std::string machine_name() {
  if (const char* const name = std::getenv("NCCL_HOSTID")) return name;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return c10::str(host_name(), ", boot ", boot);
}

// The first version of NCCL that allows several ranks on one GPU.
inline constexpr int kNcclSharesGpu = 23100;

// Returns why two ranks cannot have one GPU, with what to do; empty if they
// can. NCCL allows that from 2.31 on if the variable is 1.
// `variable`: the value of NCCL_MULTI_RANK_GPU_ENABLE; null if it is not set.
inline std::string why_no_shared_gpu(int runtime, const char* variable) {
  if (runtime >= kNcclSharesGpu && variable && std::string(variable) == "1") {
    return "";
  }
  return c10::str("NCCL ", nccl_version(runtime),
                  " refuses two ranks on one GPU with ",
                  "NCCL_MULTI_RANK_GPU_ENABLE=", variable ? variable : "",
                  ": give each rank a GPU of its own, or set the variable to 1 "
                  "on all ranks and use NCCL ",
                  nccl_version(kNcclSharesGpu), " or newer");
}

}  // namespace gpipe::internal
