// The rules by which a program may use NCCL. No CUDA.
#pragma once

#include <string>

namespace gpipe::internal {

// Versions of NCCL as NCCL_VERSION_CODE has them: 22809 is 2.28.9.
struct NcclVersions {
  int here = 0;      // of the header that gpipe was compiled with
  int libtorch = 0;  // of the header that LibTorch was compiled with
  int runtime = 0;   // of the library that runs
};

// Returns why NCCL cannot be used, with what to do; empty if it can.
//
// gpipe and LibTorch exchange a struct of NCCL's header whose size depends on
// the version, so both need the same header. NCCL's library also serves
// programs that were compiled with an older header.
std::string why_no_nccl(const NcclVersions& versions);

// Returns why two ranks cannot have one GPU, with what to do; empty if they
// can. NCCL allows that from 2.31 on if the variable is 1.
// `variable`: the value of NCCL_MULTI_RANK_GPU_ENABLE; null if it is not set.
std::string why_no_shared_gpu(int runtime, const char* variable);

}  // namespace gpipe::internal
