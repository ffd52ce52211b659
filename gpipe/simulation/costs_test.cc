#include "gpipe/simulation/costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kBad[] = {-1.0, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()};

TEST(CostsTest, NoCostsAreGood) { check_costs(Costs()); }

TEST(CostsTest, NamesTheListAndTheStageOfABadCost) {
  using List = std::vector<double> Costs::*;
  const std::vector<std::pair<std::string, List>> lists = {
      {"forward", &Costs::forward},
      {"backward", &Costs::backward},
      {"backward_input", &Costs::backward_input},
      {"backward_weight", &Costs::backward_weight},
      {"recompute", &Costs::recompute},
      {"boundary_bytes", &Costs::boundary_bytes},
      {"resident_bytes", &Costs::resident_bytes},
      {"activation_bytes", &Costs::activation_bytes},
      {"input_bytes", &Costs::input_bytes},
      {"weight_activation_bytes", &Costs::weight_activation_bytes},
      {"offload_bytes", &Costs::offload_bytes}};
  for (const auto& [name, list] : lists) {
    for (const double bad : kBad) {
      Costs costs;
      costs.*list = {0, 1, bad};
      EXPECT_THAT([&] { check_costs(costs); },
                  ThrowsMessage<std::invalid_argument>(
                      AllOf(HasSubstr("the " + name + " cost of stage 2 is"),
                            HasSubstr("not negative"))));
    }
  }
}

TEST(CostsTest, NamesABadNumber) {
  using Number = double Costs::*;
  const std::vector<std::pair<std::string, Number>> numbers = {
      {"latency", &Costs::latency},
      {"bandwidth", &Costs::bandwidth},
      {"host_bandwidth", &Costs::host_bandwidth},
      {"overlap", &Costs::overlap}};
  for (const auto& [name, number] : numbers) {
    for (const double bad : kBad) {
      Costs costs;
      costs.*number = bad;
      EXPECT_THAT(
          [&] { check_costs(costs); },
          ThrowsMessage<std::invalid_argument>(AllOf(
              HasSubstr("the " + name + " is"), HasSubstr("not negative"))));
    }
  }
  Costs costs;
  costs.overlap = 1.5;
  EXPECT_THAT([&] { check_costs(costs); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("overlap is 1.5"), HasSubstr("0 to 1"))));
}

TEST(CostsTest, RefusesToOffloadMoreThanIsKept) {
  Costs costs;
  costs.offload_bytes = {8, 9};
  check_costs(costs);
  costs.activation_bytes = {8, 9};
  check_costs(costs);
  costs.activation_bytes = {8, 8.5};
  EXPECT_THAT([&] { check_costs(costs); },
              ThrowsMessage<std::invalid_argument>(
                  "the offload_bytes cost of stage 1 is 9, but its "
                  "activation_bytes are 8.5: only what a forward keeps can go "
                  "to the host"));
  // No list is a list of zeros if there is memory of another kind.
  costs.activation_bytes.clear();
  for (auto list : {&Costs::resident_bytes, &Costs::input_bytes,
                    &Costs::weight_activation_bytes}) {
    Costs others = costs;
    others.*list = {1, 1};
    EXPECT_THAT([&] { check_costs(others); },
                ThrowsMessage<std::invalid_argument>(
                    HasSubstr("offload_bytes cost of stage 0 is 8, but its "
                              "activation_bytes are 0")));
    others.offload_bytes = {0, 0};
    check_costs(others);
  }
}

}  // namespace
}  // namespace gpipe
