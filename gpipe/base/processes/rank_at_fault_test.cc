#include "gpipe/base/processes/rank_at_fault.h"

#include <gtest/gtest.h>

#include "gpipe/distributed/error.h"

namespace gpipe {
namespace {

TEST(RankAtFault, IsThatOfAPeerError) {
  for (const Fault fault : {Fault::kFailed, Fault::kDied, Fault::kFrozen,
                            Fault::kTimeout, Fault::kDisagree, Fault::kLeft}) {
    RankFailure failure;
    failure.fault = fault;
    failure.rank = 12;
    failure.reporter = 3;
    failure.what = "rank 7 has failed";
    EXPECT_EQ(rank_at_fault("train: " + failure.to_string()), 12)
        << failure.to_string();
  }
}

TEST(RankAtFault, IsNoneInOtherLines) {
  for (const char* line :
       {"", "rank ", "rank 1", "rank 1 ", "rank 1 has begun", "rank x has died",
        "rank -1 has died", "rank 99999999999 has died", "rank 1: has died"}) {
    EXPECT_EQ(rank_at_fault(line), -1) << line;
  }
  EXPECT_EQ(rank_at_fault("rank 3 is ready, rank 4 is frozen"), 4);
}

}  // namespace
}  // namespace gpipe
