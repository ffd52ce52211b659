#include "training/testing/run_states.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>

#include "gpipe/base/crc32c.h"

namespace gpipe::testing {

void expect_equal(const RunState& a, const RunState& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.metadata, b.metadata);
  expect_equal(a.model, b.model);
  ASSERT_EQ(a.optimizer.has_value(), b.optimizer.has_value());
  if (a.optimizer) {
    EXPECT_EQ(a.optimizer->type, b.optimizer->type);
    EXPECT_EQ(a.optimizer->groups, b.optimizer->groups);
    ASSERT_EQ(a.optimizer->parameters.size(), b.optimizer->parameters.size());
    for (const auto& [name, x] : a.optimizer->parameters) {
      const auto& y = b.optimizer->parameters.at(name);
      EXPECT_EQ(x.group, y.group);
      EXPECT_EQ(x.counts, y.counts);
      ASSERT_EQ(x.tensors.size(), y.tensors.size());
      for (const auto& [what, tensor] : x.tensors) {
        EXPECT_TRUE(bit_equal(tensor, y.tensors.at(what))) << what;
      }
    }
  }
  ASSERT_EQ(a.generators.size(), b.generators.size());
  for (const auto& [device, bytes] : a.generators) {
    EXPECT_TRUE(bit_equal(bytes, b.generators.at(device)));
  }
}

at::Tensor numbers(int64_t count, double first) {
  return at::arange(first, first + static_cast<double>(count),
                    at::TensorOptions(at::kFloat));
}

RunState small_state(int64_t step) {
  const auto real = static_cast<double>(step);
  RunState state;
  state.step = step;
  state.model.insert("0.weight", numbers(4, real).view({2, 2}));
  state.model.insert("0.bias", numbers(2, real + 0.5));
  state.model.insert("1.count", at::full({}, step));
  OptimizerState& optimizer = state.optimizer.emplace();
  optimizer.type = "Adam";
  optimizer.groups = {{{"lr", 0.1}, {"beta1", 0.9}}, {{"lr", real}}};
  optimizer.parameters["0.weight"] = {
      0, {{"step", step}}, {{"exp_avg", numbers(4, -real).view({2, 2})}}};
  optimizer.parameters["0.bias"] = {1, {}, {}};
  state.generators["cpu"] = at::full({5}, step, at::TensorOptions(at::kByte));
  state.metadata = {{"learning_rate", "warmup:5"}, {"epoch", "3"}};
  return state;
}

std::string run_folder() { return new_folder() + "run"; }

std::string temporary_name(int64_t step) {
  char host[256] = {}, name[400];
  gethostname(host, sizeof host - 1);
  std::snprintf(name, sizeof name, ".step-%012d.tmp-%s-%d",
                static_cast<int>(step), host, static_cast<int>(getpid()));
  return name;
}

std::string changed_manifest(std::string manifest, const std::string& what,
                             const std::string& by) {
  manifest.replace(manifest.find(what), what.size(), by);
  const std::size_t end = manifest.find(",\n \"crc32c\"");
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x",
                internal::crc32c(manifest.data(), end));
  return manifest.replace(end + 14, 8, digits);
}

}  // namespace gpipe::testing
