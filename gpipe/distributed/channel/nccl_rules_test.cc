#include "gpipe/distributed/channel/nccl_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/base/text.h"

namespace gpipe::internal {
namespace {

TEST(NcclRules, ARuntimeThatIsNewerThanTheHeadersIsUsed) {
  EXPECT_EQ(why_no_nccl({22809, 22809, 22809}), "");
  EXPECT_EQ(why_no_nccl({22809, 22809, 23102}), "");
}

TEST(NcclRules, ARuntimeThatIsOlderThanTheHeadersIsRefused) {
  EXPECT_EQ(why_no_nccl({22809, 22809, 22808}),
            "it runs with NCCL 2.28.8, which is older than the header 2.28.9 "
            "that LibTorch was compiled with: use that version or a newer one");
}

TEST(NcclRules, TheHeadersOfGpipeAndOfLibTorchMustAgree) {
  EXPECT_EQ(why_no_nccl({22809, 22907, 22907}),
            "gpipe was compiled with the header of NCCL 2.28.9, and LibTorch "
            "with that of 2.29.7: set NCCL_HOME to the latter and build again");
  EXPECT_NE(why_no_nccl({22907, 22809, 22907}), "");
}

TEST(NcclRules, AMachineIsKnownByItsHostNameAndItsBoot) {
  const std::string host = host_name() + ", boot ";
  EXPECT_EQ(machine_name().substr(0, host.size()), host);
  EXPECT_THAT(machine_name().substr(host.size()),
              ::testing::MatchesRegex("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]"
                                      "{12}"));
}

TEST(NcclRules, TwoRanksShareAGpuFromNccl231OnIfTheVariableIs1) {
  EXPECT_EQ(why_no_shared_gpu(23100, "1"), "");
  EXPECT_EQ(why_no_shared_gpu(23102, "1"), "");
  EXPECT_EQ(why_no_shared_gpu(23009, "1"),
            "NCCL 2.30.9 refuses two ranks on one GPU with "
            "NCCL_MULTI_RANK_GPU_ENABLE=1: give each rank a GPU of its own, or "
            "set the variable to 1 on all ranks and use NCCL 2.31.0 or newer");
  EXPECT_EQ(why_no_shared_gpu(23102, nullptr),
            "NCCL 2.31.2 refuses two ranks on one GPU with "
            "NCCL_MULTI_RANK_GPU_ENABLE=: give each rank a GPU of its own, or "
            "set the variable to 1 on all ranks and use NCCL 2.31.0 or newer");
  EXPECT_NE(why_no_shared_gpu(23102, "0"), "");
  EXPECT_NE(why_no_shared_gpu(23102, ""), "");
}

}  // namespace
}  // namespace gpipe::internal
