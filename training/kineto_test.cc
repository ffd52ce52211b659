#include "training/kineto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "models/testing/files.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::names_in;
using testing::new_folder;
using testing::read_bytes;

void train(const Schedule& schedule) {
  namespace nn = torch::nn;
  GPipe pipeline(nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)),
                 GPipeOptions({1, 1})
                     .devices({torch::kCPU, torch::kCPU})
                     .checkpoint(Checkpoint::kNever)
                     .threads_per_partition(1));
  pipeline->train_step(
      torch::ones({4, 4}), torch::zeros({4, 4}),
      [](const torch::Tensor& output, const torch::Tensor& target) {
        return (output - target).pow(2).mean();
      },
      schedule);
}

TEST(KinetoTest, ActionsAreRangesAroundTheirOperatorsOnTheWorkers) {
  if (!KinetoTrace::is_available()) GTEST_SKIP() << "no Kineto";
  const std::string path = new_folder() + "kineto.json";
  const Schedule schedule = one_forward_one_backward(2, 2);
  {
    const KinetoTrace trace(path);
    train(schedule);
  }
  train(schedule);  // after the trace, so not in it
  const auto json = nlohmann::json::parse(read_bytes(path));

  struct Range {
    double start, end;
    int64_t thread;
  };
  std::multimap<std::string, Range> ranges;
  std::vector<Range> products;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const std::string name = event.at("name");
    const double start = event.at("ts"), duration = event.at("dur");
    if (!event.at("tid").is_number()) continue;
    const Range range{start, start + duration, event.at("tid")};
    if (name.rfind("gpipe ", 0) == 0) ranges.emplace(name, range);
    if (name == "aten::addmm") products.push_back(range);
  }
  std::multiset<std::string> names, expected;
  for (const auto& [name, range] : ranges) names.insert(name);
  for (const auto& rank : schedule.ranks) {
    for (const Action& action : rank) {
      expected.insert("gpipe " + to_string(action));
    }
  }
  EXPECT_EQ(names, expected);
  EXPECT_EQ(products.size(), 4);
  std::set<int64_t> threads;
  for (const Range& product : products) {
    threads.insert(product.thread);
    int in = 0;
    for (const auto& [name, range] : ranges) {
      in += name.find('F') != std::string::npos &&
            range.thread == product.thread && range.start <= product.start &&
            product.end <= range.end;
    }
    EXPECT_EQ(in, 1);
  }
  EXPECT_EQ(threads.size(), 2);
}

TEST(KinetoTest, StopWritesTheFileOnceAndLeavesNothingElse) {
  if (!KinetoTrace::is_available()) GTEST_SKIP() << "no Kineto";
  const std::string folder = new_folder();
  KinetoTrace trace(folder + "kineto.json");
  trace.stop();
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"kineto.json"});
  trace.stop();
  // Another profiler can start.
  KinetoTrace(folder + "again.json").stop();
  EXPECT_EQ(names_in(folder),
            (std::vector<std::string>{"again.json", "kineto.json"}));
}

TEST(KinetoTest, AFileThatCannotBeWrittenIsRefusedBeforeTheWork) {
  if (!KinetoTrace::is_available()) GTEST_SKIP() << "no Kineto";
  const std::string path = new_folder() + "none/kineto.json";
  const std::string error = error_of([&] { const KinetoTrace trace(path); });
  EXPECT_THAT(error, HasSubstr(path));
  EXPECT_THAT(error, HasSubstr("No such file or directory"));
}

TEST(KinetoTest, ASecondProfilerIsRefusedAndLeavesNoFile) {
  if (!KinetoTrace::is_available()) GTEST_SKIP() << "no Kineto";
  const std::string folder = new_folder();
  const KinetoTrace trace(folder + "first.json");
  EXPECT_THAT(error_of([&] { const KinetoTrace second(folder + "b.json"); }),
              HasSubstr("already runs on this thread"));
  // Another thread has no profiler of its own, but there is one of the process.
  std::string error;
  std::thread([&] {
    error = error_of([&] { const KinetoTrace third(folder + "c.json"); });
  }).join();
  EXPECT_THAT(error, HasSubstr("already runs on another thread"));
  for (const std::string& name : names_in(folder)) {
    EXPECT_EQ(name.rfind("first.json", 0), 0) << name;
  }
}

TEST(KinetoTest, AnotherThreadMayRecordAfterwards) {
  if (!KinetoTrace::is_available()) GTEST_SKIP() << "no Kineto";
  const std::string folder = new_folder();
  for (const char* name : {"none/a.json", "b.json", "c.json"}) {
    std::thread([&] {
      error_of([&] { const KinetoTrace trace(folder + name); });
    }).join();
  }
  EXPECT_THAT(names_in(folder), ElementsAre("b.json", "c.json"));
}

TEST(KinetoTest, NvtxWithoutCudaSaysWhatItNeeds) {
  if (NvtxRanges::is_available()) {
    const NvtxRanges ranges;
    train(one_forward_one_backward(2, 2));
    return;
  }
  EXPECT_THAT(error_of([] { const NvtxRanges ranges; }),
              HasSubstr("--config=cuda"));
}

}  // namespace
}  // namespace gpipe
