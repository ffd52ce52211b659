#include "balancing/time_profile.h"

#include <ATen/autocast_mode.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include "gpipe/skip/skippable.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/simulated/test_fixture.h"
#include "gpipe/testing/thread_limit.h"

namespace gpipe::balancing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::layer;
using ::testing::SizeIs;
using torch::nn::Sequential;

// Returns options for one sweep, which is enough to observe profiling.
TimeOptions once() { return TimeOptions().timeout(0); }

// A layer without clone() that records what profiling does to it.
struct ProbeImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    inputs.push_back(x);
    training.push_back(is_training());
    return weight * x;
  }

  torch::Tensor weight = register_parameter("weight", torch::ones({1}));
  std::vector<torch::Tensor> inputs;
  std::vector<bool> training;
};
TORCH_MODULE(Probe);

void sleep_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

// The identity, with a slow backward.
torch::Tensor slow_backward(const torch::Tensor& x) {
  return testing::on_backward(x, [](torch::Tensor grad) {
    sleep_ms(20);
    EXPECT_TRUE(grad.equal(torch::ones_like(grad)));
    return grad;
  });
}

TEST(ProfileTimesTest, GivesSecondsOfForwardAndBackward) {
  Sequential model;
  model->push_back(torch::nn::Linear(2, 2));
  model->push_back(layer([](torch::Tensor x) {
    sleep_ms(10);
    return slow_backward(x);
  }));
  const auto seconds =
      profile_times(model, torch::ones({1, 2}), TimeOptions().timeout(0.2));
  ASSERT_THAT(seconds, SizeIs(2));
  EXPECT_LT(seconds[0].total(), seconds[1].total());
  EXPECT_GE(seconds[1].forward, 0.01);
  EXPECT_GE(seconds[1].backward, 0.02);
  EXPECT_LT(seconds[1].total(), 0.3);
  EXPECT_THAT(totals(seconds),
              ElementsAre(seconds[0].total(), seconds[1].total()));
}

// Returns a layer that sleeps for a long time in call number `slow`, counted
// from 0.
torch::nn::AnyModule slow_once(int slow, int* calls) {
  return layer([=](torch::Tensor x) {
    sleep_ms((*calls)++ == slow ? 400 : 1);
    return x;
  });
}

TEST(ProfileTimesTest, DropsTheFirstSweep) {
  int calls = 0;
  const auto seconds =
      profile_times(Sequential(slow_once(0, &calls)), torch::ones({1}), once());
  EXPECT_EQ(calls, 2);
  EXPECT_GE(seconds[0].total(), 0.001);
  EXPECT_LT(seconds[0].total(), 0.2);
}

TEST(ProfileTimesTest, TakesTheMedian) {
  int calls = 0;
  const auto seconds =
      profile_times(Sequential(slow_once(2, &calls)), torch::ones({1}),
                    TimeOptions().timeout(0.7));
  EXPECT_GE(calls, 4);
  EXPECT_GE(seconds[0].total(), 0.001);
  EXPECT_LT(seconds[0].total(), 0.2);
}

TEST(ProfileTimesTest, StartsEachSweepFromTheSample) {
  Sequential model;
  model->push_back(torch::nn::Conv2d(3, 2, 1));
  model->push_back(torch::nn::Flatten());
  model->push_back(torch::nn::Linear(128, 10));
  EXPECT_THAT(profile_times(model, torch::rand({10, 3, 8, 8}),
                            TimeOptions().timeout(0.05)),
              SizeIs(3));
}

TEST(ProfileTimesTest, RunsLayersInTrainingModeAndLeavesTheMode) {
  Probe probe;
  Sequential model(probe, torch::nn::Dropout());
  model->eval();
  model->ptr(1)->train();
  profile_times(model, torch::ones({1}), once());
  EXPECT_THAT(probe->training, SizeIs(2));
  EXPECT_THAT(probe->training, Each(true));
  EXPECT_FALSE(model->is_training());
  EXPECT_FALSE(probe->is_training());
  EXPECT_TRUE(model->ptr(1)->is_training());
}

TEST(ProfileTimesTest, LeavesBuffersParametersAndGradients) {
  // One layer is copied, the other, `lent`, is run itself.
  struct Uncloneable : torch::nn::Module {
    torch::nn::BatchNorm1d norm =
        register_module("norm", torch::nn::BatchNorm1d(3));
    torch::Tensor calls = register_buffer("calls", torch::zeros({}));
    torch::Tensor forward(torch::Tensor x) {
      calls += 1;
      return norm->forward(x);
    }
  };
  const auto lent = std::make_shared<Uncloneable>();
  Sequential model(torch::nn::BatchNorm1d(3), lent);
  std::vector<torch::Tensor> values;
  std::vector<void*> addresses;
  const auto tensors = [&] {
    auto all = model->parameters();
    for (const auto& buffer : model->buffers()) all.push_back(buffer);
    return all;
  };
  for (const auto& tensor : tensors()) {
    values.push_back(tensor.detach().clone());
    addresses.push_back(tensor.data_ptr());
  }
  profile_times(model, torch::rand({4, 3}), once());
  const auto after = tensors();
  ASSERT_EQ(after.size(), values.size());
  for (std::size_t k = 0; k < after.size(); ++k) {
    EXPECT_TRUE(after[k].equal(values[k])) << k;
    EXPECT_EQ(after[k].data_ptr(), addresses[k]) << k;
    EXPECT_FALSE(after[k].grad().defined()) << k;
  }
}

TEST(ProfileTimesTest, LeavesTheRandomNumbers) {
  Sequential model(torch::nn::Linear(3, 3), torch::nn::Dropout());
  torch::manual_seed(0);
  const auto expected = torch::rand({5});
  torch::manual_seed(0);
  profile_times(model, torch::ones({2, 3}), once());
  EXPECT_TRUE(torch::rand({5}).equal(expected));
}

TEST(ProfileTimesTest, LeavesTheModelWhenALayerThrows) {
  Probe probe;
  Sequential model(probe, layer([](torch::Tensor) -> torch::Tensor {
                     throw std::out_of_range("no such luck");
                   }));
  model->eval();
  EXPECT_THROW(profile_times(model, torch::ones({1}), once()),
               std::out_of_range);
  EXPECT_FALSE(probe->is_training());
}

TEST(ProfileTimesTest, AcceptsLayersThatWorkInPlace) {
  const auto relu = [] {
    return torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true));
  };
  Sequential model(relu(), torch::nn::Linear(2, 2), relu(), relu());
  const auto sample = torch::full({1, 2}, -1.0).requires_grad_();
  EXPECT_THAT(profile_times(model, sample, once()), SizeIs(4));
  EXPECT_TRUE(sample.equal(torch::full({1, 2}, -1.0)));
  EXPECT_FALSE(sample.grad().defined());
}

TEST(ProfileTimesTest, AcceptsTuplesWithTensorsThatWantNoGradient) {
  using Pair = std::tuple<torch::Tensor, torch::Tensor>;
  struct Twin : torch::nn::Module {
    torch::nn::Linear linear =
        register_module("linear", torch::nn::Linear(1, 1));
    Pair forward(Pair pair) {
      const auto& [x, y] = pair;
      return {linear(x), y.defined() ? y : x.detach().to(torch::kLong)};
    }
  };
  const auto x = torch::rand({2, 1});
  EXPECT_THAT(
      profile_times(Sequential(Twin(), Twin()), Pair(x, x.detach()), once()),
      SizeIs(2));
  EXPECT_THAT(profile_times(Sequential(Twin(), Twin()),
                            Pair(x, torch::Tensor()), once()),
              SizeIs(2));
}

TEST(ProfileTimesTest, AcceptsLayersWithoutGradients) {
  Sequential model(torch::nn::Embedding(3, 2),
                   layer([](torch::Tensor x) { return x.argmax(-1); }));
  EXPECT_THAT(profile_times(model, torch::zeros({2}, torch::kLong), once()),
              SizeIs(2));
}

TEST(ProfileTimesTest, RecordsGraphsWhereTheCallerDoesNot) {
  Sequential model(torch::nn::Linear(1, 1), layer([](torch::Tensor x) {
                     EXPECT_TRUE(x.requires_grad());
                     return slow_backward(x);
                   }));
  {
    torch::NoGradGuard no_grad;
    EXPECT_GE(profile_times(model, torch::ones({1, 1}), once())[1].total(),
              0.02);
    EXPECT_FALSE(torch::GradMode::is_enabled());
  }
  c10::InferenceMode inference;
  EXPECT_GE(profile_times(model, torch::ones({1, 1}), once())[1].total(), 0.02);
  EXPECT_TRUE(c10::InferenceMode::is_enabled());
}

struct StashImpl : torch::nn::Module, Skippable {
  StashImpl() : Skippable({{"skip", "nothing"}, {}}) {}
  torch::Tensor forward(torch::Tensor x) {
    stash("skip", slow_backward(x));
    stash("nothing", std::nullopt);
    return x.detach();
  }
};
TORCH_MODULE(Stash);

struct PopImpl : torch::nn::Module, Skippable {
  PopImpl() : Skippable({{}, {"skip", "nothing"}}) {}
  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor skip = *pop("skip");
    EXPECT_TRUE(skip.requires_grad());
    EXPECT_FALSE(pop("nothing").has_value());
    return x + slow_backward(skip.add_(1));
  }
};
TORCH_MODULE(Pop);

TEST(ProfileTimesTest, GivesEachLayerItsOwnBackwardOfASkip) {
  Sequential model(torch::nn::Linear(1, 1), Stash(), torch::nn::ReLU(), Pop());
  const auto seconds =
      profile_times(model, torch::ones({1, 1}), TimeOptions().timeout(0.2));
  EXPECT_GE(seconds[1].backward, 0.02);
  EXPECT_LT(seconds[2].total(), seconds[1].total());
  EXPECT_GE(seconds[3].backward, 0.02);
}

TEST(ProfileTimesTest, GivesThePartsOfSplitBackwards) {
  Sequential model(torch::nn::Linear(64, 64), torch::nn::Linear(64, 64),
                   torch::nn::ReLU(),
                   torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})));
  const torch::Tensor sample = torch::ones({32, 64});
  const auto times = profile_times(model, sample, once().split_backward(true));
  ASSERT_THAT(times, SizeIs(4));
  // No gradient of the sample is wanted.
  EXPECT_EQ(times[0].backward_input, 0);
  EXPECT_GT(times[0].backward_weight, 0);
  EXPECT_GT(times[1].backward_input, 0);
  EXPECT_GT(times[1].backward_weight, 0);
  EXPECT_GT(times[1].accumulate, 0);
  // A layer without parameters.
  EXPECT_GT(times[2].backward_input, 0);
  EXPECT_EQ(times[2].backward_weight, 0);
  EXPECT_EQ(times[2].accumulate, 0);
  EXPECT_GT(times[3].backward_input, 0);
  for (const LayerTime& each : profile_times(model, sample, once())) {
    EXPECT_EQ(each.backward_input, 0);
    EXPECT_EQ(each.backward_weight, 0);
    EXPECT_GT(each.backward, 0);
  }
  const auto of_input = profile_times(model, sample.clone().requires_grad_(),
                                      once().split_backward(true));
  EXPECT_GT(of_input[0].backward_input, 0);
}

TEST(ProfileTimesTest, DividesBackwardsAsZeroBubbleSchedulesDo) {
  // slow_backward() is no matrix product, so all of it is in the input part.
  Sequential model(torch::nn::Linear(1, 1),
                   layer([](torch::Tensor x) { return slow_backward(x); }));
  const auto times =
      profile_times(model, torch::ones({1, 1}), once().split_backward(true));
  EXPECT_GE(times[1].backward, 0.02);
  EXPECT_GE(times[1].backward_input, 0.02);
  EXPECT_EQ(times[1].backward_weight, 0);
}

// Returns the identity, which appends `name` to `log` in each direction.
torch::nn::AnyModule logged(const std::string& name,
                            std::vector<std::string>* log) {
  return layer([=](torch::Tensor x) {
    log->push_back("F" + name);
    return testing::on_backward(x, [=](torch::Tensor grad) {
      log->push_back("B" + name);
      return grad;
    });
  });
}

TEST(ProfileTimesTest, RunsBackwardsAfterAllForwardsAsACellDoes) {
  std::vector<std::string> log;
  const auto sample = torch::ones({1}, torch::requires_grad());
  profile_times(Sequential(logged("0", &log), logged("1", &log)), sample,
                once());
  EXPECT_THAT(log, ElementsAre("F0", "F1", "B1", "B0",  // warm-up
                               "F0", "F1", "B1", "B0"));
  log.clear();
  const auto make = [&](int64_t first, int64_t) {
    return Sequential(logged(std::to_string(first), &log));
  };
  profile_times(2, make, sample, once());
  EXPECT_THAT(log, ElementsAre("F0", "B0", "F1", "B1",  // needs one layer only
                               "F0", "B0", "F1", "B1"));
}

TEST(ProfileTimesTest, AddsGradientsOfLayersThatMakeTheirOwnLeaves) {
  // Leaves of different sizes, at addresses that may repeat.
  int size = 1;
  Sequential model(layer([&](torch::Tensor x) {
    return x + torch::ones({++size}, torch::requires_grad()).sum();
  }));
  EXPECT_THAT(
      profile_times(model, torch::ones({1}), TimeOptions().timeout(0.02)),
      SizeIs(1));
}

TEST(ProfileTimesTest, MakesOneLayerAtATime) {
  struct Alive : StashImpl {
    explicit Alive(int& alive) : alive(alive) { EXPECT_EQ(++alive, 1); }
    ~Alive() override { --alive; }
    int& alive;
  };
  int alive = 0;
  std::vector<int64_t> made;
  const auto make = [&](int64_t first, int64_t count) {
    EXPECT_EQ(count, 1);
    EXPECT_EQ(alive, 0);
    made.push_back(first);
    Sequential one;
    if (first == 0) one->push_back(torch::nn::Linear(1, 1));
    if (first == 1) one->push_back(std::make_shared<Alive>(alive));
    if (first == 2) one->push_back(Pop());
    return one;
  };
  const auto seconds = profile_times(3, make, torch::ones({1, 1}), once());
  EXPECT_THAT(made, ElementsAre(0, 1, 2, 0, 1, 2));
  ASSERT_THAT(seconds, SizeIs(3));
  EXPECT_GE(seconds[1].backward, 0.02);
  EXPECT_GE(seconds[2].backward, 0.02);
  const auto none = [](int64_t, int64_t) { return Sequential(); };
  EXPECT_THROW(profile_times(1, none, torch::ones({1}), once()),
               c10::ValueError);
}

// Autocast's cache would keep each weight until the caller's scope ends.
TEST(ProfileTimesTest, DropsTheWeightsOfEachLayerUnderAutocast) {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> weights;
  const auto expect_none = [&] {
    for (const auto& each : weights) EXPECT_TRUE(each.expired());
  };
  const auto make = [&](int64_t, int64_t) {
    expect_none();
    const auto weight = torch::ones({1, 1}, torch::requires_grad());
    weights.push_back(weight.storage().getWeakStorageImpl());
    return Sequential(layer([weight](const torch::Tensor& x) {
      const torch::Tensor product = torch::linear(x, weight);
      EXPECT_EQ(product.scalar_type(), torch::kBFloat16);
      return product;
    }));
  };
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::increment_nesting();
  profile_times(2, make, torch::ones({1, 1}), once());
  expect_none();
  EXPECT_THAT(weights, SizeIs(4));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

TEST(ProfileTimesTest, TellsHowFarItIs) {
  std::vector<double> parts;
  const auto note = [&](double part) { parts.push_back(part); };
  profile_times(Sequential(torch::nn::ReLU()), torch::ones({1}),
                TimeOptions().timeout(0.01).progress(note));
  ASSERT_FALSE(parts.empty());
  EXPECT_TRUE(std::is_sorted(parts.begin(), parts.end()));
  EXPECT_GT(parts.front(), 0);
  EXPECT_EQ(parts.back(), 1);
}

TEST(ProfileTimesTest, RefusesTimeoutsThatAreNone) {
  const Sequential model{torch::nn::ReLU()};
  for (double timeout : {-1.0, std::numeric_limits<double>::quiet_NaN(),
                         std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(
        profile_times(model, torch::ones({1}), TimeOptions().timeout(timeout)),
        c10::ValueError);
  }
}

TEST(ProfileTimesTest, RefusesASampleThatIsNoTensor) {
  EXPECT_THROW(profile_times(Sequential(torch::nn::ReLU()), 1.0, once()),
               c10::TypeError);
}

// A layer that waits until three copies of it, on three threads, run at once.
struct MeetingImpl : torch::nn::Cloneable<MeetingImpl> {
  void reset() override {}
  torch::Tensor forward(torch::Tensor x) {
    static std::mutex mutex;
    static std::condition_variable met;
    std::unique_lock<std::mutex> lock(mutex);
    threads().insert(std::this_thread::get_id());
    objects().insert(this);
    met.notify_all();
    met.wait_for(lock, std::chrono::seconds(30),
                 [] { return threads().size() >= 3; });
    return x;
  }
  static std::set<std::thread::id>& threads() {
    static std::set<std::thread::id> all;
    return all;
  }
  static std::set<const void*>& objects() {
    static std::set<const void*> all;
    return all;
  }
};
TORCH_MODULE(Meeting);

TEST(ProfileTimesTest, CompanyRunsCopiesOnOtherThreads) {
  Sequential model{Meeting()};
  profile_times(model, torch::ones({1}), once().concurrent_copies(2));
  EXPECT_THAT(MeetingImpl::threads(), SizeIs(3));
  EXPECT_THAT(MeetingImpl::objects(), SizeIs(3));
  EXPECT_EQ(MeetingImpl::objects().count(model[0].get()), 0);
}

TEST(ProfileTimesTest, ALayerThatCannotBeCopiedHasNoCompany) {
  Sequential model{Probe()};
  profile_times(model, torch::ones({1}), once().concurrent_copies(2));
  EXPECT_THAT(model[0]->as<Probe>()->inputs, SizeIs(2));
}

TEST(ProfileTimesTest, ACopyWithoutAThreadIsAnError) {
  torch::set_num_threads(1);
  Sequential model(torch::nn::Linear(2, 2));
  for (int more = 0; more < 3; ++more) {
    const testing::ThreadLimit limit(more);
    const auto profile = [&] {
      profile_times(model, torch::ones({1, 2}), once().concurrent_copies(2));
    };
    if (testing::ThreadLimit::kWorks && more < 2) {
      EXPECT_THROW(profile(), std::system_error);
    } else {
      profile();
    }
  }
}

TEST(ProfileTimesTest, AnErrorComesOutOfCompanyToo) {
  Sequential model(torch::nn::Linear(2, 2), torch::nn::Linear(3, 2));
  EXPECT_THROW(
      profile_times(model, torch::ones({1, 2}), once().concurrent_copies(1)),
      c10::Error);
  EXPECT_THROW(
      profile_times(model, torch::ones({1, 2}), once().concurrent_copies(-1)),
      c10::ValueError);
}

using AcceleratorTest = simulated::SimulatedTest;

TEST_F(AcceleratorTest, TimesAreThoseOfTheDeviceNotOfTheHost) {
  // Returns at once, and keeps the device busy.
  Sequential model(
      layer([](torch::Tensor x) {
        simulated::Simulation::get().enqueue(
            simulated::default_stream(0),
            {"sleep", {}, [] {
               std::this_thread::sleep_for(std::chrono::milliseconds(20));
             }});
        return 2 * x;
      }),
      torch::nn::Linear(2, 2));
  const auto times = profile_times(model, torch::ones({1, 2}),
                                   once().device(simulated::hpu(0)));
  ASSERT_THAT(times, SizeIs(2));
  EXPECT_GE(times[0].forward, 0.02);
  EXPECT_LT(times[1].forward, 0.02);
  EXPECT_TRUE(model->parameters()[0].is_cpu());
}

TEST_F(AcceleratorTest, TheDeviceIsBusyWhileTheHostLaunchesASmallLayer) {
  const auto layer = [] {
    return testing::layer([](torch::Tensor x) { return x.tanh(); });
  };
  Sequential model(layer(), layer());
  simulated::take_trace();
  profile_times(model, torch::ones({1, 2}), once().device(simulated::hpu(0)));
  constexpr int64_t kLong = int64_t{16} << 20;  // bytes
  int64_t long_copies = 0, forwards = 0;
  for (const auto& each : simulated::take_trace()) {
    if (each.bytes >= kLong) ++long_copies;
    if (each.name != "aten::tanh") continue;
    ++forwards;
    EXPECT_EQ(long_copies, forwards);
  }
  EXPECT_EQ(forwards, 2 * 2);  // sweeps and layers
}

}  // namespace
}  // namespace gpipe::balancing
