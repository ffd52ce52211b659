// Tests layers that stash and pop, with and without a pipeline.
#include "gpipe/skip.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using testing::device;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kModes;
using testing::layer;
using testing::leaf_of;
using testing::options;
using testing::reference_device;
using ::testing::StartsWith;
using torch::Tensor;
using torch::nn::Sequential;

// A layer that declares `names` and calls `function`.
struct SkipLayer : torch::nn::Module, Skippable {
  using Function = std::function<Tensor(SkipLayer&, Tensor)>;
  SkipLayer(std::vector<std::string> stashes, std::vector<std::string> pops,
            Function function)
      : Skippable({std::move(stashes), std::move(pops)}),
        function(std::move(function)) {}
  Tensor forward(Tensor x) { return function(*this, std::move(x)); }
  using Skippable::pop;
  using Skippable::stash;
  Function function;
};

std::shared_ptr<SkipLayer> stashing(
    std::optional<Namespace> ns = std::nullopt,
    std::function<std::optional<Tensor>(Tensor)> what = [](Tensor x) {
      return std::optional<Tensor>(x);
    }) {
  auto made = std::make_shared<SkipLayer>(std::vector<std::string>{"foo"},
                                          std::vector<std::string>{},
                                          [what](SkipLayer& self, Tensor x) {
                                            self.stash("foo", what(x));
                                            return x * 2;
                                          });
  if (ns) made->isolate(*ns);
  return made;
}

std::shared_ptr<SkipLayer> popping(
    std::optional<Namespace> ns = std::nullopt,
    std::function<Tensor(Tensor, std::optional<Tensor>)> use =
        [](Tensor x, std::optional<Tensor> skip) { return x + *skip; }) {
  auto made = std::make_shared<SkipLayer>(
      std::vector<std::string>{}, std::vector<std::string>{"foo"},
      [use](SkipLayer& self, Tensor x) { return use(x, self.pop("foo")); });
  if (ns) made->isolate(*ns);
  return made;
}

GPipe pipeline_of(Sequential model, const std::vector<int64_t>& balance,
                  Checkpoint mode = Checkpoint::kExceptLast,
                  int64_t chunks = 1) {
  return GPipe(model, options(balance, chunks, mode));
}

torch::nn::AnyModule sine() {
  return layer([](Tensor x) { return x.sin(); });
}

// Returns pipelines for all cuts of three layers.
std::vector<GPipe> cuts_of_three(Sequential model, Checkpoint mode,
                                 int64_t chunks = 2) {
  std::vector<GPipe> pipelines;
  for (const auto& balance :
       std::vector<std::vector<int64_t>>{{3}, {1, 2}, {2, 1}, {1, 1, 1}}) {
    pipelines.push_back(pipeline_of(model, balance, mode, chunks));
  }
  return pipelines;
}

// Expects that value and gradient equal those of the plain model, for every cut
// and mode. The model has no parameters, so all pipelines may share it.
void expect_as_plain(Sequential model) {
  const Tensor values = torch::linspace(-1, 1, 6, torch::kDouble);
  const auto run = [](auto& module, const Tensor& x) {
    const Tensor output = module->forward(x);
    return std::make_pair(output.detach().cpu(),
                          torch::autograd::grad({output.sum()}, {x})[0].cpu());
  };
  const auto expected = run(model, leaf_of(values, reference_device()));
  const Tensor x = leaf_of(values, device());
  for (const Checkpoint mode : kModes) {
    for (auto& pipeline : cuts_of_three(model, mode)) {
      const auto actual = run(pipeline, x);
      EXPECT_TRUE(torch::allclose(actual.first, expected.first, 1e-12, 1e-12));
      EXPECT_TRUE(
          torch::allclose(actual.second, expected.second, 1e-12, 1e-12));
    }
  }
}

TEST(Skippable, DeclaresWithNamespaces) {
  const Namespace all, one;
  SkipLayer made({"a", "b"}, {"c"}, nullptr);
  EXPECT_THAT(made.stashable(), ElementsAre(SkipKey{Namespace::none(), "a"},
                                            SkipKey{Namespace::none(), "b"}));
  made.isolate(all);
  made.isolate(one, {"b"});
  EXPECT_THAT(made.stashable(),
              ElementsAre(SkipKey{all, "a"}, SkipKey{one, "b"}));
  EXPECT_THAT(made.poppable(), ElementsAre(SkipKey{all, "c"}));
  EXPECT_EQ(error_of([&] { made.isolate(one, {"x"}); }),
            "c10::Error: 'x' cannot be isolated: it has been declared neither "
            "as stashable nor as poppable");
}

TEST(Plain, HandsATensorToALaterLayer) {
  Sequential model(stashing(), sine(), popping());
  const Tensor x = torch::rand({4});
  EXPECT_TRUE(torch::equal(model->forward(x), (x * 2).sin() + x));
}

TEST(Plain, WorksOnAnyThread) {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Sequential model(stashing(), sine(), popping());
      for (int k = 0; k < 50; ++k) {
        const Tensor x = torch::full({4}, t + k / 100.0);
        right += torch::equal(model->forward(x), (x * 2).sin() + x);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

TEST(Plain, ErrorsAreThoseOfTheReference) {
  const Tensor x = torch::ones({2});
  SkipLayer made({"a"}, {"b"}, nullptr);
  EXPECT_EQ(error_of([&] { made.stash("x", x); }),
            "c10::Error: 'x' has not been declared as stashable");
  EXPECT_EQ(error_of([&] { made.stash("b", x); }),
            "c10::Error: 'b' has not been declared as stashable");
  EXPECT_EQ(error_of([&] { made.pop("a"); }),
            "c10::Error: 'a' has not been declared as poppable");
  EXPECT_EQ(error_of([&] { made.pop("b"); }),
            "c10::Error: 'b' has not been stashed");
}

TEST(Plain, NoneIsHandedOverAsNone) {
  const auto none = [](Tensor) { return std::optional<Tensor>(); };
  const auto undefined = [](Tensor) { return std::optional<Tensor>(Tensor()); };
  for (const auto& what :
       {std::function<std::optional<Tensor>(Tensor)>(none),
        std::function<std::optional<Tensor>(Tensor)>(undefined)}) {
    Sequential model(
        stashing(std::nullopt, what),
        popping(std::nullopt, [](Tensor x, std::optional<Tensor> skip) {
          EXPECT_EQ(skip, std::nullopt);
          return x;
        }));
    model->forward(torch::ones({2}));
  }
}

TEST(Verify, ListsEveryMismatch) {
  verify_skippables(Sequential(stashing(), popping()));
  verify_skippables(Sequential());
  EXPECT_EQ(error_of([&] {
              verify_skippables(
                  Sequential(stashing(), popping(), stashing(), popping()));
            }),
            "c10::TypeError: one or more pairs of stash and pop do not match:\n"
            "\n* '2' redeclared 'foo' as stashable but not isolated by "
            "namespace"
            "\n* '3' redeclared 'foo' as poppable but not isolated by "
            "namespace");
}

TEST(Verify, SeesSkippablesInsideOfLayers) {
  struct Outer : torch::nn::Module {
    Outer() : inner(register_module("inner", stashing())) {}
    Tensor forward(Tensor x) { return inner->forward(x); }
    std::shared_ptr<SkipLayer> inner;
  };
  Sequential model;
  model->push_back("outer", std::make_shared<Outer>());
  EXPECT_THAT(error_of([&] { verify_skippables(model); }),
              HasSubstr("* no module declared 'foo' as poppable but stashed"));
  model->push_back(sine());
  model->push_back(popping());
  expect_as_plain(model);
}

TEST(Pipeline, CarriesASkipOverAnyCut) {
  expect_as_plain(Sequential(stashing(), sine(), popping()));
}

TEST(Pipeline, CarriesNone) {
  expect_as_plain(Sequential(
      stashing(std::nullopt, [](Tensor) { return std::optional<Tensor>(); }),
      sine(), popping(std::nullopt, [](Tensor x, std::optional<Tensor> skip) {
        EXPECT_EQ(skip, std::nullopt);
        return x;
      })));
}

TEST(Pipeline, CarriesIntegers) {
  expect_as_plain(Sequential(stashing(std::nullopt,
                                      [](Tensor x) {
                                        return std::optional<Tensor>(
                                            (x * 10).to(torch::kLong));
                                      }),
                             sine(), popping()));
}

TEST(Pipeline, CarriesADetachedSkip) {
  expect_as_plain(Sequential(
      stashing(std::nullopt,
               [](Tensor x) { return std::optional<Tensor>(x.detach()); }),
      sine(), popping()));
}

// In torchgpipe the backward fails with an empty AssertionError.
TEST(Pipeline, MayLeaveASkipUnusedAfterThePop) {
  expect_as_plain(
      Sequential(stashing(), sine(),
                 popping(std::nullopt,
                         [](Tensor x, std::optional<Tensor>) { return x; })));
}

TEST(Pipeline, MayUseASkipAlone) {
  expect_as_plain(Sequential(
      stashing(), sine(),
      popping(std::nullopt,
              [](Tensor, std::optional<Tensor> skip) { return *skip * 3; })));
}

// Each forward has its own skip tensors, in any order of the backwards.
TEST(Pipeline, KeepsForwardsApart) {
  Sequential model(
      stashing(), sine(),
      popping(std::nullopt, [](Tensor x, std::optional<Tensor> skip) {
        return x * *skip * *skip;
      }));
  const Tensor values = torch::linspace(-1, 1, 6, torch::kDouble);
  const auto run = [&](auto& module, const torch::Device& where, bool reverse) {
    const Tensor a = leaf_of(values, where), b = leaf_of(values * 3, where);
    Tensor first = module->forward(a).sum();
    Tensor second = module->forward(b).sum();
    (reverse ? second : first).backward();
    (reverse ? first : second).backward();
    return torch::cat({a.grad().cpu(), b.grad().cpu()});
  };
  const Tensor expected = run(model, reference_device(), false);
  for (const Checkpoint mode : kModes) {
    for (auto& pipeline : cuts_of_three(model, mode)) {
      for (const bool reverse : {false, true}) {
        EXPECT_TRUE(torch::allclose(run(pipeline, device(), reverse), expected,
                                    1e-12, 1e-12));
      }
    }
  }
}

// The last stash counts, as in a plain Sequential.
TEST(Pipeline, MayStashANameAgainInOneForward) {
  auto twice = std::make_shared<SkipLayer>(std::vector<std::string>{"foo"},
                                           std::vector<std::string>{},
                                           [](SkipLayer& self, Tensor x) {
                                             self.stash("foo", x * 100);
                                             self.stash("foo", x * 7);
                                             return x;
                                           });
  expect_as_plain(Sequential(twice, sine(), popping()));
}

TEST(Pipeline, KeepsNamespacesApart) {
  const Namespace first, second;
  const auto times = [](double factor) {
    return [factor](Tensor x, std::optional<Tensor> skip) {
      return x + *skip * factor;
    };
  };
  Sequential model(stashing(first), stashing(second), popping(first, times(3)),
                   popping(second, times(5)));
  const Tensor x = torch::rand({4}, torch::kDouble);
  const Tensor expected = x * 4 + x * 3 + x * 2 * 5;
  const Tensor input = x.to(device());
  for (const Checkpoint mode : kModes) {
    for (const auto& balance :
         std::vector<std::vector<int64_t>>{{4}, {1, 1, 1, 1}, {2, 2}, {1, 3}}) {
      GPipe pipeline = pipeline_of(model, balance, mode, 2);
      EXPECT_TRUE(torch::allclose(pipeline->forward(input).cpu(), expected));
    }
  }
}

// LibTorch chooses the kernel of a product by whether its factors require grad,
// also without grad mode.
TEST(Pipeline, AWeightThatIsPassedOnRequiresGradWithoutGradModeToo) {
  const Tensor weight = torch::ones({3}).to(device()).requires_grad_();
  bool requires_grad = false;
  Sequential model(stashing(std::nullopt, [&](Tensor) { return weight; }),
                   popping(std::nullopt, [&](Tensor x, auto skip) {
                     requires_grad = skip->requires_grad();
                     return x * *skip;
                   }));
  GPipe pipeline = pipeline_of(model, {1, 1});
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(
      pipeline->forward(torch::ones({4, 3}).to(device())).requires_grad());
  EXPECT_TRUE(requires_grad);
}

// The inner pipeline's skips have the same names as those around it.
TEST(Pipeline, InALayerServesItsOwnSkips) {
  struct Inner : torch::nn::Module {
    Inner()
        : pipeline(register_module(
              "pipeline", GPipe(Sequential(stashing(), sine(), popping()),
                                GPipeOptions({1, 2}).chunks(2).devices(
                                    {device(), device()})))) {}
    Tensor forward(Tensor x) { return pipeline->forward(x); }
    GPipe pipeline;
  };
  Sequential model(stashing(), std::make_shared<Inner>(), popping());
  verify_skippables(model);
  const Tensor x = torch::linspace(-1, 1, 8, torch::kDouble);
  const Tensor expected = x + 2 * x + (4 * x).sin();
  for (const Checkpoint mode : kModes) {
    GPipe pipeline(model,
                   GPipeOptions({1, 1, 1}).chunks(2).checkpoint(mode).devices(
                       {device(), device(), device()}));
    const Tensor input = leaf_of(x, device());
    const Tensor output = pipeline->forward(input);
    EXPECT_TRUE(torch::allclose(output.cpu(), expected));
    output.sum().backward();
    EXPECT_TRUE(torch::allclose(input.grad().cpu(), 3 + 4 * (4 * x).cos()));
  }
}

TEST(Pipeline, SkipErrorsSurfaceWithTheirPlace) {
  const auto run = [](std::shared_ptr<SkipLayer> first,
                      std::shared_ptr<SkipLayer> last) {
    GPipe pipeline = pipeline_of(Sequential(first, sine(), last), {1, 1, 1});
    return error_of([&] { pipeline->forward(torch::ones({2}).to(device())); });
  };
  const auto forgetful = [](std::vector<std::string> stashes,
                            std::vector<std::string> pops) {
    return std::make_shared<SkipLayer>(stashes, pops,
                                       [](SkipLayer&, Tensor x) { return x; });
  };
  EXPECT_EQ(run(forgetful({"foo"}, {}), popping()),
            "c10::Error: 'foo' must be stashed but have not (in partition 0, "
            "micro-batch 0, forward, layer '0')");
  EXPECT_EQ(run(stashing(), forgetful({}, {"foo"})),
            "c10::Error: 'foo' must be popped but have not (in partition 2, "
            "micro-batch 0, forward, layer '2')");
  const auto twice = std::make_shared<SkipLayer>(
      std::vector<std::string>{}, std::vector<std::string>{"foo"},
      [](SkipLayer& self, Tensor x) {
        self.pop("foo");
        self.pop("foo");
        return x;
      });
  EXPECT_EQ(run(stashing(), twice),
            "c10::Error: 'foo' has not been stashed (in partition 2, "
            "micro-batch 0, forward, layer '2')");
  const auto undeclared = std::make_shared<SkipLayer>(
      std::vector<std::string>{"foo"}, std::vector<std::string>{},
      [](SkipLayer& self, Tensor x) {
        self.stash("bar", x);
        return x;
      });
  EXPECT_THAT(run(undeclared, popping()),
              StartsWith("c10::Error: 'bar' has not been declared as "
                         "stashable (in partition 0"));
}

// ---- Tests how long skip tensors live: until the layer that pops them drops
// them, and never on the partitions between.

// Counts the skip tensors with live memory: stashed ones, and their copies on
// other devices, which were popped.
class Lives {
 public:
  Tensor make(const Tensor& like) {
    const Tensor skip = torch::ones_like(like, torch::kFloat).detach();
    watch(skip);
    return skip;
  }
  void watch(const Tensor& skip) {
    std::lock_guard<std::mutex> lock(mutex_);
    // This list keeps the address of a freed storage from being reused.
    auto storage = skip.storage().getWeakStorageImpl();
    const bool known = std::ranges::any_of(storages_, [&](const auto& each) {
      return each._unsafe_get_target() == storage._unsafe_get_target();
    });
    if (!known) storages_.push_back(std::move(storage));
  }
  int now() {
    std::lock_guard<std::mutex> lock(mutex_);
    return alive();
  }

  // Records the number of live tensors. The layer after the popping one calls
  // it.
  void look() {
    std::lock_guard<std::mutex> lock(mutex_);
    seen_.push_back(alive());
  }
  const std::vector<int>& seen() const { return seen_; }

 private:
  int alive() const {
    return static_cast<int>(std::ranges::count_if(
        storages_, [](const auto& each) { return !each.expired(); }));
  }

  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
  std::vector<int> seen_;
};

struct CountedStashImpl : torch::nn::Module, Skippable {
  explicit CountedStashImpl(Lives& lives)
      : Skippable({{"skip"}, {}}), lives(lives) {}
  Tensor forward(Tensor x) {
    stash("skip", lives.make(x));
    return x * 1;
  }
  Lives& lives;
};
TORCH_MODULE(CountedStash);

// A layer that adds, since the backward of an addition needs no operand.
struct CountedPopImpl : torch::nn::Module, Skippable {
  explicit CountedPopImpl(Lives& lives)
      : Skippable({{}, {"skip"}}), lives(lives) {}
  Tensor forward(Tensor x) {
    const Tensor skip = *pop("skip");
    lives.watch(skip);
    return x + skip;
  }
  Lives& lives;
};
TORCH_MODULE(CountedPop);

Sequential model(Lives& lives) {
  return Sequential(CountedStash(lives), layer([](Tensor x) { return x * 1; }),
                    CountedPop(lives), layer([&](Tensor x) {
                      lives.look();
                      return x * 1;
                    }));
}

Tensor leaf(int64_t size) {
  return torch::ones({size}).to(device()).requires_grad_();
}

TEST(SkipTensor, DiesAtThePopWithoutCheckpointing) {
  for (const auto& balance :
       std::vector<std::vector<int64_t>>{{4}, {1, 3}, {1, 1, 2}, {2, 2}}) {
    Lives lives;
    GPipe pipeline(model(lives), options(balance, 1, Checkpoint::kNever));
    auto output = pipeline->forward(leaf(2));
    EXPECT_THAT(lives.seen(), ::testing::ElementsAre(0));
    output.sum().backward();
    EXPECT_EQ(lives.now(), 0);
  }
}

TEST(SkipTensor, DiesAtThePopWithoutGradientsInEveryMode) {
  torch::NoGradGuard no_grad;
  for (const Checkpoint mode : kModes) {
    Lives lives;
    GPipe pipeline(model(lives), options({1, 1, 2}, 1, mode));
    pipeline->forward(torch::ones({2}).to(device()));
    EXPECT_THAT(lives.seen(), ::testing::ElementsAre(0));
    EXPECT_EQ(lives.now(), 0);
  }
}

// The recompute of the popping cell needs the tensor again. The one that a
// recompute of the stashing cell makes is not used.
TEST(SkipTensor, LivesUntilTheBackwardOfACheckpointedPop) {
  for (const auto& balance :
       std::vector<std::vector<int64_t>>{{1, 3}, {1, 1, 2}, {2, 2}}) {
    Lives lives;
    GPipe pipeline(model(lives), options(balance, 3, Checkpoint::kAlways));
    const Tensor x = leaf(3);
    auto output = pipeline->forward(x);
    EXPECT_EQ(lives.now(), 3);
    output.sum().backward();
    EXPECT_EQ(lives.now(), 0);
    EXPECT_TRUE(torch::equal(x.grad().cpu(), torch::ones({3})));
  }
}

TEST(SkipTensor, IsFreedWhenTheGraphIsDropped) {
  for (const Checkpoint mode : kModes) {
    Lives lives;
    GPipe pipeline(model(lives), options({1, 1, 2}, 3, mode));
    pipeline->forward(leaf(3));
    EXPECT_EQ(lives.now(), 0);
  }
}

TEST(SkipTensor, IsFreedWhenALayerFails) {
  for (const Checkpoint mode : kModes) {
    Lives lives;
    GPipe pipeline(Sequential(CountedStash(lives), layer([](Tensor x) {
                                TORCH_CHECK(current_microbatch() != 1, "no");
                                return x * 1;
                              }),
                              CountedPop(lives)),
                   options({1, 1, 1}, 3, mode));
    EXPECT_THROW(pipeline->forward(leaf(3)), c10::Error);
    EXPECT_EQ(lives.now(), 0);
  }
}

// The output, and so the graph, still exists then.
TEST(SkipTensor, IsFreedWhenARecomputeFails) {
  Lives lives;
  GPipe pipeline(
      Sequential(CountedStash(lives), layer([](Tensor x) {
                   TORCH_CHECK(!is_recomputing() || current_microbatch() != 1,
                               "no");
                   return x * 1;
                 }),
                 CountedPop(lives)),
      options({1, 1, 1}, 3, Checkpoint::kAlways));
  const Tensor output = pipeline->forward(leaf(3));
  EXPECT_EQ(lives.now(), 3);
  EXPECT_THROW(output.sum().backward(), c10::Error);
  EXPECT_EQ(lives.now(), 0);
}

TEST(SkipTensor, DiesAtThePopInAPlainSequential) {
  Lives lives;
  model(lives)->forward(torch::ones({2}).to(reference_device()));
  EXPECT_THAT(lives.seen(), ::testing::ElementsAre(0));
}

}  // namespace
}  // namespace gpipe
