#include "gpipe/distributed/world/world_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns the path of a new file with this text.
std::string file_of(const std::string& text) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(folder ? folder : "/tmp") + "/secret";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string error_of_environment() {
  try {
    WorldOptions::from_environment();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(WorldOptionsTest, ReadsTheSecretAndTheNamesOfCertificates) {
  unsetenv("GPIPE_SECRET_FILE");
  EXPECT_EQ(WorldOptions::from_environment().secret, "");
  setenv("GPIPE_SECRET_FILE", file_of(" a b\r\n\n").c_str(), 1);
  setenv("GPIPE_TLS_CERTIFICATE", "c.pem", 1);
  setenv("GPIPE_TLS_KEY", "k.pem", 1);
  setenv("GPIPE_TLS_AUTHORITY", "a.pem", 1);
  const WorldOptions options = WorldOptions::from_environment();
  EXPECT_EQ(options.secret, " a b");
  EXPECT_EQ(options.tls.certificate, "c.pem");
  EXPECT_EQ(options.tls.key, "k.pem");
  EXPECT_EQ(options.tls.authority, "a.pem");
}

TEST(WorldOptionsTest, SharesMemoryUnlessTheEnvironmentForbidsIt) {
  unsetenv("GPIPE_SECRET_FILE");
  EXPECT_TRUE(WorldOptions::from_environment().shares_memory);
  setenv("GPIPE_SHARED_MEMORY", "0", 1);
  EXPECT_FALSE(WorldOptions::from_environment().shares_memory);
  setenv("GPIPE_SHARED_MEMORY", "1", 1);
  EXPECT_TRUE(WorldOptions::from_environment().shares_memory);
  setenv("GPIPE_SHARED_MEMORY", "off", 1);
  EXPECT_THAT(error_of_environment(),
              HasSubstr("GPIPE_SHARED_MEMORY is 'off': set it to 0"));
  unsetenv("GPIPE_SHARED_MEMORY");
}

TEST(WorldOptionsTest, TakesTheBackendFromTheEnvironment) {
  unsetenv("GPIPE_SECRET_FILE");
  unsetenv("GPIPE_BACKEND");
  EXPECT_EQ(WorldOptions::from_environment().backend, "gpipe");
  setenv("GPIPE_BACKEND", "gloo", 1);
  EXPECT_EQ(WorldOptions::from_environment().backend, "gloo");
  unsetenv("GPIPE_BACKEND");
}

TEST(WorldOptionsTest, ASecretThatCannotBeReadIsAnErrorAndNotNone) {
  setenv("GPIPE_SECRET_FILE", "/missing/secret", 1);
  EXPECT_THAT(error_of_environment(),
              AllOf(HasSubstr("GPIPE_SECRET_FILE is '/missing/secret'"),
                    HasSubstr("cannot be read"), HasSubstr("openssl rand")));
  setenv("GPIPE_SECRET_FILE", file_of("\n").c_str(), 1);
  EXPECT_THAT(error_of_environment(), HasSubstr("is empty"));
}

}  // namespace
}  // namespace gpipe
