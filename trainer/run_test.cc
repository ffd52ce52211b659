#include "trainer/run.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "trainer/exit_code.h"
#include "trainer/testing/small_runs.h"

namespace gpipe::trainer {
namespace {

Ending ending_after(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return ending_of(error);
  }
  return {kDone, ""};
}

void expect_refused(const Options& options, const std::string& text) {
  const Ending ending = ending_after([&] { run_here(options); });
  EXPECT_EQ(ending.code, kWrongFlags) << text;
  EXPECT_NE(ending.text.find(text), std::string::npos) << ending.text;
}

TEST(RunTest, WrongFlagsAreNamedWithWhatThereIs) {
  const Options good = small_options("transformer");
  const auto with = [&](const std::function<void(Options&)>& change) {
    Options options = good;
    change(options);
    return options;
  };
  expect_refused(with([](Options& o) { o.loop.precision = "fp8"; }),
                 "--precision=fp8: must be float32, amp-float16");
  expect_refused(with([](Options& o) { o.loop.lr_schedule = "up"; }), "up");
  expect_refused(with([](Options& o) { o.optimizer.name = "lion"; }),
                 "--optimizer=lion: there are sgd");
  expect_refused(with([](Options& o) { o.optimizer.lr = 0; }), "--lr=0");
  expect_refused(with([](Options& o) { o.engine.schedule = "abc"; }),
                 "there are fill-drain, 1f1b");
  expect_refused(with([](Options& o) { o.engine.schedule = "forward-only"; }),
                 "does not train");
  expect_refused(with([](Options& o) { o.engine.checkpoint = "some"; }),
                 "--checkpoint=some");
  expect_refused(with([](Options& o) { o.engine.balance = "1,2"; }),
                 "there are 2 stages and 7 layers");
  expect_refused(with([](Options& o) { o.engine.partitions = 8; }),
                 "8 stages cannot be made of the model's 7 layers");
  expect_refused(with([](Options& o) { o.engine.partitions = 3; }),
                 "too few devices");
  expect_refused(with([](Options& o) { o.engine.data_parallel = 2; }),
                 "with --distributed");
  expect_refused(with([](Options& o) { o.loop.accumulate = 0; }),
                 "--accumulate=0");
  expect_refused(with([](Options& o) { o.loop.clip = -1; }), "--clip=-1");
  expect_refused(with([](Options& o) { o.loop.trace_step = 0; }),
                 "--trace_step=0: must be at least 1");
  expect_refused(with([](Options& o) { o.loop.resume = "4000"; }),
                 "--resume=4000: there are no steps without --run_dir");
  expect_refused(with([](Options& o) { o.loop.weights = "/nowhere.pt"; }),
                 "/nowhere.pt");
}

TEST(RunTest, WhatIsNoFlagsFaultIsAFailure) {
  EXPECT_EQ(ending_after([] { TORCH_CHECK(false, "a"); }).code, kFailed);
  EXPECT_EQ(ending_after([] { TORCH_CHECK(false, "a"); }).text, "a");
  EXPECT_EQ(ending_after([] { throw std::runtime_error("b"); }).code, kFailed);
  EXPECT_EQ(ending_after([] { throw std::invalid_argument("b"); }).code,
            kWrongFlags);
}

TEST(RunTest, EachModelTrainsOnWhatItDraws) {
  for (const char* model : {"amoebanetd", "unet", "transformer"}) {
    Options options = small_options(model);
    options.loop.steps = 1;
    const Ran ran = run_here(options);
    EXPECT_EQ(ran.code, kDone) << model;
    EXPECT_NE(ran.line_with("drawn by this program"), "") << model;
    EXPECT_NE(ran.line_with("all 1 steps have been made"), "") << model;
  }
}

}  // namespace
}  // namespace gpipe::trainer
