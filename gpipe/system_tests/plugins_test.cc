// Two shared libraries of one process that each contain gpipe. The environment
// variables PLUGIN_A and PLUGIN_B contain their paths. This program contains
// neither gpipe nor LibTorch.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

// AddressSanitizer must not report objects that are there twice: they are the
// subject. ASAN_OPTIONS may add other options.
extern "C" const char* __asan_default_options() {
  return "detect_odr_violation=0";
}

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using RunPlugin = const char* (*)(const char*);

// Loads a plugin and returns its function.
RunPlugin load(const char* variable, int scope) {
  void* const library = ::dlopen(std::getenv(variable), RTLD_NOW | scope);
  if (!library) {
    ADD_FAILURE() << ::dlerror();
    return [](const char*) { return "not loaded"; };
  }
  const auto run = reinterpret_cast<RunPlugin>(::dlsym(library, "run_plugin"));
  // It stays loaded, since LibTorch and exit() may call it.
  ::dlclose(library);
  return run;
}

// Each test runs in a process of its own.
class PluginsDeathTest : public ::testing::Test {
 protected:
  PluginsDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Ends the process with 0 if no test has failed in it.
[[noreturn]] void end() { std::exit(::testing::Test::HasFailure() ? 1 : 0); }

TEST_F(PluginsDeathTest, TheFirstWorksAndTheSecondSaysWhatToDo) {
  EXPECT_EXIT(
      {
        const RunPlugin first = load("PLUGIN_A", RTLD_LOCAL);
        EXPECT_STREQ(first("train"), "ok");
        const RunPlugin second = load("PLUGIN_B", RTLD_LOCAL);
        for (const char* what : {"train", "place"}) {
          EXPECT_THAT(second(what),
                      AllOf(HasSubstr("gpipe is in this process twice, in "),
                            HasSubstr(std::getenv("PLUGIN_A")),
                            HasSubstr(std::getenv("PLUGIN_B")),
                            HasSubstr("link gpipe into one shared library")));
          EXPECT_STREQ(first(what), "ok");
        }
        end();
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(PluginsDeathTest, BothWorkInTheGlobalScope) {
  EXPECT_EXIT(
      {
        const RunPlugin first = load("PLUGIN_A", RTLD_GLOBAL);
        const RunPlugin second = load("PLUGIN_B", RTLD_GLOBAL);
        for (const char* what : {"train", "place"}) {
          EXPECT_STREQ(first(what), "ok");
          EXPECT_STREQ(second(what), "ok");
        }
        end();
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
