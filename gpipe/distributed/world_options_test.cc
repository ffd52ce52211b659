#include "gpipe/distributed/world_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(WorldOptionsTest, TakesTheBackendFromTheEnvironment) {
  unsetenv("GPIPE_BACKEND");
  EXPECT_EQ(WorldOptions::from_environment().backend, "");
  setenv("GPIPE_BACKEND", "ucc", 1);
  EXPECT_EQ(WorldOptions::from_environment().backend, "ucc");
  unsetenv("GPIPE_BACKEND");
}

TEST(WorldOptionsTest, ASecretThatNothingWouldKeepIsAnError) {
  for (const char* const name : {"GPIPE_SECRET_FILE", "GPIPE_TLS_CERTIFICATE",
                                 "GPIPE_TLS_KEY", "GPIPE_TLS_AUTHORITY"}) {
    setenv(name, "file", 1);
    EXPECT_THAT([] { WorldOptions::from_environment(); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(HasSubstr(name), HasSubstr("not encrypted"),
                          HasSubstr("docs/security.md"))));
    unsetenv(name);
  }
}

}  // namespace
}  // namespace gpipe
