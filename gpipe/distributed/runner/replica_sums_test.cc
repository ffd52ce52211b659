#include "gpipe/distributed/runner/replica_sums.h"

#include <ATen/ATen.h>
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/distributed/world/exchanges.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using testing::check;
using testing::CommunicatorProgramEntry;
using testing::expect_ok;
using ::testing::Pair;
using testing::Ranks;

constexpr int kTag = 6;
constexpr int64_t kBuckets[] = {1, 8, 100, int64_t{1} << 24};

// Returns numbers whose sum depends on the order of addition.
Tensor numbers(at::IntArrayRef sizes, at::ScalarType type, int rank,
               int number) {
  const int64_t count = c10::multiply_integers(sizes);
  const Tensor k = at::arange(count, at::kDouble);
  return (k.add(1.7 * number + 0.3).mul(1 + rank).sin() *
          at::exp(k.remainder(9) - 3.0 * rank))
      .reshape(sizes)
      .to(type);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.contiguous().view(-1).view(at::kByte).equal(
             b.contiguous().view(-1).view(at::kByte));
}

// Returns the tensors of a rank. All ranks have the same sizes and dtypes, but
// other values and other undefined tensors.
std::vector<Tensor> tensors_of(int rank, int ranks) {
  std::vector<Tensor> all;
  const auto add = [&](at::IntArrayRef sizes, at::ScalarType type) {
    all.push_back(numbers(sizes, type, rank, static_cast<int>(all.size()) + 1));
  };
  add({5, 7}, at::kFloat);
  add({3}, at::kDouble);  // dtypes alternate, so buckets end
  add({1000}, at::kFloat);
  add({}, at::kFloat);
  add({0}, at::kFloat);
  add({2, 0, 3}, at::kFloat);
  add({1}, at::kFloat);  // fewer elements than ranks
  add({17}, at::kBFloat16);
  add({0}, at::kDouble);  // an empty bucket
  add({17, 3}, at::kBFloat16);
  add({2, 3, 4, 5}, at::kFloat);
  all.back() = all.back().contiguous(at::MemoryFormat::ChannelsLast);
  add({4, 6}, at::kDouble);
  all.back() = all.back().t();
  // Undefined on all ranks but one, on one, on all.
  for (int who = 0; who < ranks; ++who) {
    add({6}, at::kFloat);
    if (rank != who) all.back() = Tensor();
    add({3, 2}, at::kDouble);
    if (rank == who) all.back() = Tensor();
    all.emplace_back();
  }
  return all;
}

// Returns a parameter for a gradient; any tensor if no member has the gradient.
Tensor like(const std::vector<std::vector<Tensor>>& by_member,
            std::size_t number) {
  for (const auto& each : by_member) {
    if (each[number].defined()) return at::zeros_like(each[number]);
  }
  return at::zeros({2});
}

// Returns the expected sum: undefined counts as zero; first to last member.
Tensor sum_of(const std::vector<std::vector<Tensor>>& by_member,
              std::size_t number) {
  Tensor sum;
  bool any = false;
  for (const auto& each : by_member) {
    any = any || each[number].defined();
    const Tensor value =
        each[number].defined() ? each[number] : like(by_member, number);
    sum = sum.defined() ? sum + value : value;
  }
  return any ? sum : Tensor();
}

void check_sums(Communicator& world, const std::vector<int>& members,
                int64_t bucket) {
  Communicator& transport = world;
  const int rank = world.rank();
  if (std::find(members.begin(), members.end(), rank) == members.end()) return;
  std::vector<std::vector<Tensor>> by_member;
  for (const int each : members) {
    by_member.push_back(tensors_of(each, world.size()));
  }
  const std::vector<Tensor> before = tensors_of(rank, world.size());
  std::vector<Summand> tensors;
  std::vector<Tensor> copies;
  for (std::size_t n = 0; n < before.size(); ++n) {
    tensors.push_back({like(by_member, n), before[n]});
    copies.push_back(before[n].defined() ? before[n].clone() : before[n]);
  }
  all_reduce(world, transport, members, kTag, tensors, bucket);
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    const Tensor& sum = tensors[n].grad;
    const std::string where = std::to_string(members.size()) +
                              " members, tensor " + std::to_string(n) +
                              ", buckets of " + std::to_string(bucket);
    const auto check = [&](bool holds, const char* what) {
      if (!holds) throw std::runtime_error(where + ": " + what);
    };
    const Tensor expected = sum_of(by_member, n);
    check(sum.defined() == expected.defined(), "defined");
    if (!expected.defined()) continue;
    check(same_bits(sum, expected), "sum");
    if (!before[n].defined()) continue;
    check(sum.strides() == before[n].strides(), "strides");
    // The old gradient must not change, because other code may share it.
    check(same_bits(before[n], copies[n]), "written in place");
  }
}

const CommunicatorProgramEntry kSums("sums", [](auto& world) {
  const std::vector<int> everybody = world->all_ranks();
  for (const int64_t bucket : kBuckets) {
    check_sums(*world, everybody, bucket);
    // The replicas of a pipeline of two ranks.
    std::vector<int> same_stage;
    for (int k = world->rank() % 2; k < world->size(); k += 2) {
      same_stage.push_back(k);
    }
    check_sums(*world, same_stage, bucket);
  }
  std::vector<Summand> none;
  Communicator& transport = *world;
  all_reduce(*world, transport, everybody, kTag, none);
});

// A host transport that counts the bytes that it sends.
class CountingTransport final : public Transport {
 public:
  explicit CountingTransport(Communicator& world) : host_(world) {}
  c10::Device device() const override { return host_.device(); }
  bool takes_early_receives() const override { return true; }
  Work send(const Tensor& bytes, int to, int tag,
            const Transport::Action& action) override {
    sent += bytes.numel();
    return host_.send(bytes, to, tag, action);
  }
  Work receive(const Tensor& bytes, int from, int tag,
               const Transport::Action& action) override {
    return host_.receive(bytes, from, tag, action);
  }
  int64_t sent = 0;

 private:
  Communicator& host_;
};

// Each member gets its rows of the sums, to the bit, and gives its rows of the
// parameters to the others.
const CommunicatorProgramEntry kShards("shards", [](auto& world) {
  const int ranks = world->size();
  const std::vector<int> everybody = world->all_ranks();
  std::vector<std::vector<Tensor>> by_member;
  for (int rank = 0; rank < ranks; ++rank) {
    by_member.push_back(tensors_of(rank, ranks));
  }
  for (const int64_t bucket : kBuckets) {
    std::vector<Summand> whole, rows;
    std::vector<Tensor> parameters;
    for (std::size_t n = 0; n < by_member[0].size(); ++n) {
      parameters.push_back(like(by_member, n).requires_grad_());
      whole.push_back({parameters[n], by_member[world->rank()][n]});
    }
    rows = whole;
    Communicator &all = *world, &own = *world;
    all_reduce(*world, all, everybody, kTag, whole, bucket);
    if (ranks > 1) {
      Reducer reducer(*world, own, everybody, kTag, SumShare::kOwnRows);
      std::size_t begin = 0;
      for (const std::size_t end : cut_buckets(rows, bucket)) {
        reducer.add_up(rows.data() + begin, rows.data() + end);
        begin = end;
      }
    }
    for (std::size_t k = 0; k < rows.size() && ranks > 1; ++k) {
      const Tensor expected =
          slice_of_member(whole[k].grad, ranks, world->rank());
      check(rows[k].grad.defined() == expected.defined(), "defined");
      if (!expected.defined()) continue;
      check(same_bits(rows[k].grad, expected), "sum of own rows");
    }
    ParameterShards shards(parameters, ranks, world->rank());
    for (const Tensor& each : shards.own()) {
      each.detach().fill_(world->rank() + 1);
    }
    if (ranks > 1) {
      Reducer reducer(*world, own, everybody, kTag);
      shards.spread(reducer);
    }
    for (const Tensor& each : parameters) {
      for (int member = 0; member < ranks; ++member) {
        const Tensor part = slice_of_member(each, ranks, member);
        check(!part.defined() || part.eq(member + 1).all().item<bool>(),
              "a parameter");
      }
    }
  }
});

// A parameter of one row requires a gradient for a while.
const CommunicatorProgramEntry kFrozen("frozen", [](auto& world) {
  Communicator& transport = *world;
  Tensor one = at::ones({1});
  ParameterShards shards({one}, world->size(), world->rank());
  one.requires_grad_(true);
  shards.add(one);
  for (const Tensor& each : shards.own()) each.detach().fill_(5);
  one.requires_grad_(false);
  Reducer reducer(*world, transport, world->all_ranks(), kTag);
  shards.spread(reducer);
  check(one.item<float>() == 5, "the row of another member");
});

// Returns the bytes that all members send to add up `gradients` and, with
// `sharded`, to share the parameters.
int64_t bytes_sent(Communicator& world, const std::vector<Tensor>& gradients,
                   bool sharded) {
  const std::vector<int> everybody = world.all_ranks();
  std::vector<Summand> all;
  for (const Tensor& each : gradients) all.push_back({each, each});
  CountingTransport transport(world);
  Reducer reducer(world, transport, everybody, kTag,
                  sharded ? SumShare::kOwnRows : SumShare::kAll);
  std::size_t begin = 0;
  for (const std::size_t end : cut_buckets(all)) {
    reducer.add_up(all.data() + begin, all.data() + end);
    begin = end;
  }
  if (sharded) {
    std::vector<Tensor> parameters;
    for (const Tensor& each : gradients) {
      parameters.push_back(each.detach().requires_grad_());
    }
    ParameterShards(parameters, world.size(), world.rank()).spread(reducer);
  }
  int64_t sent = 0;
  for (const std::string& each :
       all_gather(world, kTag, std::to_string(transport.sent), "the test")) {
    sent += std::stoll(each);
  }
  return sent;
}

const CommunicatorProgramEntry kBytes("bytes", [](auto& world) {
  std::vector<Tensor> gradients;
  for (int layer = 0; layer < 24; ++layer) {
    gradients.push_back(at::ones({36, 12}));
    gradients.push_back(at::ones({36}));
  }
  // Each gradient, and a number for each that says whether it is defined.
  const int64_t numel = 24 * (36 * 12 + 36), count = 48;
  const int64_t ranks = world->size();
  const int64_t whole = bytes_sent(*world, gradients, false);
  check(whole == 4 * (ranks - 1) * (2 * numel + 2 * count),
        std::to_string(whole) + " bytes for whole sums");
  const int64_t sharded = bytes_sent(*world, gradients, true);
  check(sharded == 4 * (ranks - 1) * (2 * numel + ranks * count),
        std::to_string(sharded) + " bytes for shards");
});

const CommunicatorProgramEntry kFirst("first", [](auto& world) {
  Communicator& transport = *world;
  const std::vector<int> everybody = world->all_ranks();
  Reducer reducer(*world, transport, everybody, kTag);
  const auto of = [](int rank) {
    std::vector<Tensor> tensors;
    for (const auto type : {at::kFloat, at::kBFloat16, at::kLong, at::kBool}) {
      tensors.push_back(numbers({5, 3}, at::kDouble, rank, 1).mul(9).to(type));
    }
    tensors.push_back(numbers({3, 4}, at::kDouble, rank, 2).t());
    tensors.push_back(numbers({}, at::kDouble, rank, 3));
    tensors.push_back(at::empty({0}));
    tensors.push_back(numbers({1, 3}, at::kDouble, rank, 5).expand({4, 3}));
    // Larger than a bucket.
    tensors.push_back(numbers({kBucketBytes / 8 + 1}, at::kDouble, rank, 4));
    tensors.push_back(at::empty({2}, at::kMeta));
    return tensors;
  };
  for (const bool differ : {true, false}) {
    const std::vector<Tensor> tensors = of(differ ? world->rank() : 0);
    std::vector<std::pair<std::string, Tensor>> named;
    for (const Tensor& each : tensors) named.emplace_back("weight", each);
    reducer.copy_first(named);
    const std::vector<Tensor> expected = of(0);
    for (std::size_t k = 0; k + 1 < tensors.size(); ++k) {
      check(tensors[k].equal(expected[k]), "tensor " + std::to_string(k));
      check(tensors[k].strides() == expected[k].strides(), "strides");
    }
  }
});

const CommunicatorProgramEntry kDiffer("differ", [](auto& world) {
  Communicator& transport = *world;
  const bool last = world->rank() == world->size() - 1;
  const std::vector<int> everybody = world->all_ranks();
  const auto print_error = [&](const auto& call) {
    try {
      call();
      std::cout << "no error" << std::endl;
    } catch (const c10::Error& error) {
      std::cout << error.what_without_backtrace() << std::endl;
    }
  };
  const auto try_with = [&](std::vector<Tensor> tensors) {
    std::vector<Summand> all;
    for (const Tensor& each : tensors) all.push_back({each, each});
    print_error([&] { all_reduce(*world, transport, everybody, kTag, all); });
  };
  const Tensor four = at::ones({4});
  try_with(last ? std::vector<Tensor>{four} : std::vector<Tensor>{four, four});
  try_with({four, last ? at::ones({2, 2}) : four});
  try_with({four, last ? at::ones({4}, at::kDouble) : four});
  // Frozen in one replica, whose next tensor is a captured one.
  std::vector<Summand> frozen = {{four, four, "a"},
                                 {four, four, last ? "" : "b"}};
  print_error([&] { all_reduce(*world, transport, everybody, kTag, frozen); });
  try_with({four, four});  // works again
  std::vector<Summand> named = {{four, four, "a"},
                                {four, four, last ? "c" : "b"}};
  print_error([&] { all_reduce(*world, transport, everybody, kTag, named); });
  print_error([&] {
    Reducer(*world, transport, everybody, kTag)
        .copy_first({{"a", four}, {last ? "c" : "b", four}});
  });
  print_error([&] {
    Reducer(*world, transport, everybody, kTag)
        .copy_first({{"a", four}, {"mask", four.to_sparse()}});
  });
  // Cast or frozen since the step, in one replica.
  for (const auto& other :
       {at::ones({4}, at::kDouble).requires_grad_(), four}) {
    ParameterShards shards({}, world->size(), world->rank());
    shards.add(at::ones({4}).requires_grad_(), "a");
    shards.add(last ? other : at::ones({4}).requires_grad_(), "b");
    print_error([&] {
      Reducer reducer(*world, transport, everybody, kTag);
      shards.spread(reducer);
    });
  }
});

class Reduce : public ::testing::TestWithParam<int> {};

TEST_P(Reduce, AddsInTheOrderOfTheMembersToTheBit) {
  expect_ok("sums", GetParam());
}

TEST_P(Reduce, ShardsHaveTheBitsOfTheirRows) {
  expect_ok("shards", GetParam());
}

TEST(ParameterShards, OfParametersThatAreFrozenLaterAreSpread) {
  expect_ok("frozen", 3);
}

TEST(Reduce, AllMembersGetTheValuesOfTheFirst) {
  for (const int size : {2, 3, 4}) expect_ok("first", size);
}

TEST(Reduce, SumsOfShardsAndSharedParametersAreAsManyBytesAsWholeSums) {
  for (const int size : {2, 3, 4}) expect_ok("bytes", size);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Reduce, ::testing::Values(1, 2, 3, 4));

// Otherwise the test above would not notice a wrong order.
TEST(Reduce, NumbersOfTheTestDependOnTheOrder) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Tensor a = numbers({1000}, type, 0, 1),
                 b = numbers({1000}, type, 1, 1),
                 c = numbers({1000}, type, 2, 1);
    EXPECT_FALSE(same_bits(a + b + c, b + c + a)) << type;
    EXPECT_FALSE(same_bits(a + b + c, c + a + b)) << type;
  }
}

// Returns the error if tensor 1 of rank 2 differs from that of rank 0.
std::string different(const std::string& what, const std::string& one,
                      const std::string& other,
                      const std::string& remedy =
                          "give all replicas the same layers, and freeze "
                          "the same parameters in all of them") {
  return "the replicas have different " + what + ": number 1 is " + one +
         " on rank 0, but " + other + "; " + remedy + "\n";
}

TEST(Reduce, SaysOnAllMembersWhatDiffers) {
  const std::string captured = "a tensor that a layer has captured";
  const auto captured_differs = [&](const std::string& other) {
    return different("gradients", captured + " (Float [4])", other,
                     "register it as a parameter of a layer, or detach it");
  };
  for (const auto& each : Ranks("differ", 3).wait()) {
    EXPECT_TRUE(each.ended && each.exit.ok()) << each.err;
    EXPECT_EQ(each.out,
              captured_differs("missing on rank 2, which has 1") +
                  captured_differs(captured + " (Float [2, 2]) on rank 2") +
                  captured_differs(captured + " (Double [4]) on rank 2") +
                  different("gradients", "'b' (Float [4])",
                            captured + " (Float [4]) on rank 2") +
                  "no error\n" +
                  different("gradients", "'b' (Float [4])",
                            "'c' (Float [4]) on rank 2") +
                  different("weights", "'b' (Float [4])",
                            "'c' (Float [4]) on rank 2") +
                  "'mask' has layout Sparse and dtype Float; "
                  "replicas can share dense tensors only: keep it "
                  "out of the registered parameters and buffers, or "
                  "make it dense\n" +
                  different("parameters", "'b' (Float [4])",
                            "'b' (Double [4]) on rank 2") +
                  different("parameters", "'b' (Float [4])",
                            "missing on rank 2, which has 1"));
  }
}

TEST(Reduce, BucketsEndWithATypeOrWhenTheyAreFull) {
  const auto of = [](int64_t elements, at::ScalarType type) {
    return Summand{at::zeros({elements}, type), Tensor()};
  };
  const std::vector<Summand> all = {of(4, at::kFloat),  of(1, at::kFloat),
                                    of(9, at::kFloat),  of(1, at::kDouble),
                                    of(1, at::kDouble), of(0, at::kDouble),
                                    of(7, at::kFloat)};
  EXPECT_EQ(cut_buckets(all, 17), (std::vector<std::size_t>{2, 3, 6, 7}));
  EXPECT_EQ(cut_buckets(all, 16), (std::vector<std::size_t>{1, 3, 5, 6, 7}));
  EXPECT_EQ(cut_buckets(all, 1 << 20), (std::vector<std::size_t>{3, 6, 7}));
  EXPECT_TRUE(cut_buckets({}, 1).empty());
}

constexpr int kBarrierTag = 7;

// Returns a gradient that differs by rank; the sums are exact.
Tensor grad_of(const Tensor& parameter, int rank) {
  return at::full_like(parameter, 1 << rank);
}
double sum_of_grads(int ranks) { return (1 << ranks) - 1; }

void give(ReplicaSums& sums, const Tensor& parameter, int rank) {
  Tensor grad = grad_of(parameter, rank);
  check(sums.give(parameter, grad, Event()), "is a parameter");
}

// Blocks until `buckets` buckets have been added up; throws after a minute.
void wait_until_done(const ReplicaSums& sums, std::size_t buckets) {
  for (int tries = 0; tries < 6000 && sums.done() < buckets; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  check(sums.done() == buckets, "buckets done: " + std::to_string(sums.done()));
}

// A bucket for each parameter.
const CommunicatorProgramEntry kOverlap("overlap", [](auto& world) {
  const int rank = world->rank(), size = world->size();
  const Tensor a = at::zeros({1000}), b = at::zeros({3, 2}, at::kDouble),
               c = at::zeros({5}), d = at::zeros({2});
  Communicator& transport = *world;
  ReplicaSums sums(*world, transport, world->all_ranks(), kTag, SumShare::kAll,
                   1);
  for (int step = 0; step < 3; ++step) {
    sums.begin({{a}, {b}, {c}, {d}}, /*stages=*/2);
    check(sums.buckets() == 4, "buckets");
    Tensor other = at::ones({3});
    check(!sums.give(other, other, Event()) && other.defined(), "another");
    give(sums, a, rank);
    sums.close();
    // No other gradient has been given yet.
    wait_until_done(sums, 1);
    Tensor again = at::ones({1000});
    bool refused = false;
    try {
      sums.give(a, again, Event());
    } catch (const c10::Error&) {
      refused = true;
    }
    check(refused && again.defined(), "a second time");
    all_gather(*world, kBarrierTag, "", "the test");
    give(sums, c, rank);
    // One rank has no gradient of b; no rank has one of d.
    if (rank > 0) give(sums, b, rank);
    sums.close();
    const std::vector<Summand> result = sums.finish();
    check(result[0].like.is_same(a), "order");
    check(result[0].grad.equal(at::full_like(a, sum_of_grads(size))), "a");
    check(result[1].grad.equal(at::full_like(b, sum_of_grads(size) - 1)), "b");
    check(result[2].grad.equal(at::full_like(c, sum_of_grads(size))), "c");
    check(!result[3].grad.defined(), "d");
    check(sums.done() == 4, "done");
  }
});

const CommunicatorProgramEntry kStopped("stopped", [](auto& world) {
  const Tensor a = at::zeros({4}), b = at::zeros({4}), c = at::zeros({4});
  Communicator& transport = *world;
  ReplicaSums sums(*world, transport, world->all_ranks(), kTag, SumShare::kAll,
                   1);
  sums.begin({{a}, {b}, {c}});
  give(sums, a, world->rank());
  const Tensor grad = at::ones({4});
  Tensor given = grad;
  check(sums.give(c, given, Event()), "is a parameter");
  wait_until_done(sums, 1);
  // stop() must not wait for b, which is never given.
  sums.stop();
  check(grad.use_count() == 1, "the gradient of c is released");
  all_gather(*world, kBarrierTag, "", "the test");
  sums.begin({{a}});
  give(sums, a, world->rank());
  check(sums.finish()[0].grad.equal(at::full_like(a, sum_of_grads(2))), "sum");
});

// Ranks with different parameters, and ranks whose peer fails.
const CommunicatorProgramEntry kErrors("errors", [](auto& world) {
  const bool last = world->rank() == world->size() - 1;
  const Tensor a = at::zeros({4}), b = at::zeros({last ? 3 : 4});
  Communicator& transport = *world;
  ReplicaSums sums(*world, transport, world->all_ranks(), kTag);
  sums.begin({{a, {}, "a"}, {b, {}, "b"}});
  try {
    sums.finish();
    std::cout << "no error" << std::endl;
  } catch (const c10::Error& error) {
    std::cout << error.what_without_backtrace() << std::endl;
  }
  // The other ranks may learn of the failure anywhere in this block.
  try {
    all_gather(*world, kBarrierTag, "", "the test");
    sums.begin({{a}});
    if (last) {
      const int rank = world->rank();
      world->fail({Fault::kFailed, rank, rank, "the test", "no reason"});
      // The thread of `sums` waits for a gradient that is never given.
      sums.stop();
      return;
    }
    give(sums, a, world->rank());
    sums.finish();
    std::cout << "no error" << std::endl;
  } catch (const PeerError& error) {
    std::cout << to_string(error.failure().fault) << std::endl;
  }
});

class ReplicaSumsTest : public ::testing::TestWithParam<int> {};

TEST_P(ReplicaSumsTest, AddsABucketUpWhileOthersAreNotThere) {
  expect_ok("overlap", GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ranks, ReplicaSumsTest, ::testing::Values(2, 3, 4));

TEST(ReplicaSums, AStepThatIsStoppedIsForgotten) { expect_ok("stopped", 2); }

TEST(ReplicaSums, ErrorsComeOutOfFinish) {
  const auto results = Ranks("errors", 3).wait();
  const std::string differ =
      different("gradients", "'b' (Float [4])", "'b' (Float [3]) on rank 2");
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_TRUE(results[rank].ended && results[rank].exit.ok())
        << results[rank].err;
    EXPECT_EQ(results[rank].out, differ + (rank < 2 ? "has failed\n" : ""));
  }
}

TEST(MemberRows, CoverAllRowsOnceInOrder) {
  for (int64_t rows = 0; rows < 9; ++rows) {
    for (std::size_t members = 1; members < 6; ++members) {
      int64_t next = 0;
      for (std::size_t k = 0; k < members; ++k) {
        const auto [begin, count] = rows_of_member({rows, 2}, members, k);
        EXPECT_EQ(begin, next);
        EXPECT_LE(count, rows / static_cast<int64_t>(members) + 1);
        next = begin + count;
      }
      EXPECT_EQ(next, rows);
    }
  }
  EXPECT_THAT(rows_of_member({}, 2, 0), Pair(0, 0));
  EXPECT_THAT(rows_of_member({}, 2, 1), Pair(0, 1));
}

TEST(ParameterShards, MemberZeroOwnsATensorWithoutRows) {
  const at::Tensor none = at::ones({0, 3});
  EXPECT_EQ(slice_of_member(none, 2, 0).sizes(), none.sizes());
  EXPECT_FALSE(slice_of_member(none, 2, 1).defined());
  EXPECT_FALSE(slice_of_member(at::ones({1, 3}), 2, 0).defined());
  EXPECT_FALSE(slice_of_member(at::scalar_tensor(1), 2, 0).defined());
}

TEST(ParameterShards, AreLeavesThatShareTheMemoryOfTheirRows) {
  at::Tensor weight = at::arange(10, at::kFloat).view({5, 2});
  weight.requires_grad_();
  const at::Tensor frozen = at::ones({2});
  at::Tensor scalar = at::scalar_tensor(7, at::kFloat);
  scalar.requires_grad_();
  ParameterShards shards({weight, frozen, scalar}, 2, 1);
  const auto own = shards.own();
  ASSERT_EQ(own.size(), 2u) << "a frozen parameter needs no optimizer";
  EXPECT_TRUE(own[0].is_leaf());
  EXPECT_TRUE(own[0].requires_grad());
  EXPECT_FALSE(own[0].is_view());
  EXPECT_TRUE(own[0].equal(weight.detach().narrow(0, 2, 3)));
  own[0].detach().fill_(-1);
  EXPECT_EQ(weight[2][0].item<float>(), -1);
  EXPECT_EQ(weight[1][1].item<float>(), 3);
  own[1].detach().fill_(8);
  EXPECT_EQ(scalar.item<float>(), 8);
  EXPECT_TRUE(shards.has(weight));
  EXPECT_FALSE(shards.has(own[0]));
  // The first replica has no row of the scalar.
  EXPECT_EQ(ParameterShards({weight, scalar}, 2, 0).own().size(), 1u);
}

TEST(ParameterShards, FollowAParameterThatIsFrozenOrUnfrozen) {
  at::Tensor weight = at::ones({4});
  ParameterShards shards({weight}, 2, 0);
  const at::Tensor shard = shards.shard_of(weight);
  EXPECT_FALSE(shard.requires_grad());
  EXPECT_TRUE(shards.own().empty());
  weight.requires_grad_(true);
  EXPECT_TRUE(shards.own().at(0).is_same(shard));
  EXPECT_TRUE(shard.requires_grad());
  weight.requires_grad_(false);
  EXPECT_TRUE(shards.own().empty());
  EXPECT_FALSE(shards.shard_of(weight).requires_grad());
}

TEST(ParameterShards, OfLaterParametersAreAddedOnce) {
  const at::Tensor a = at::ones({4}).requires_grad_(),
                   b = at::ones({2}).requires_grad_();
  ParameterShards shards({a}, 2, 1);
  EXPECT_FALSE(shards.has(b));
  for (int times = 0; times < 2; ++times) {
    shards.add(a);
    shards.add(b);
    EXPECT_EQ(shards.own().size(), 2u);
  }
  EXPECT_EQ(shards.shard_of(b).numel(), 1);
}

TEST(ParameterShards, OfReplacedParametersComeBackIfTheseAreInUse) {
  const at::Tensor a = at::ones({4}).requires_grad_(),
                   b = at::ones({2}).requires_grad_();
  ParameterShards shards({a, b}, 2, 0);
  shards.add(at::ones({6}).requires_grad_());
  EXPECT_EQ(shards.own().size(), 3u);
  const at::Tensor shard = shards.shard_of(a);
  for (const auto& present : {b, a}) {
    shards.clear();
    shards.add(present);
    EXPECT_EQ(shards.own().size(), 1u);
  }
  EXPECT_TRUE(shards.own()[0].is_same(shard));
}

TEST(ParameterShards, TheirGradientsAreCleared) {
  const at::Tensor weight = at::ones({4}).requires_grad_();
  ParameterShards shards({weight}, 2, 0);
  const at::Tensor shard = shards.own().at(0);
  shard.mutable_grad() = at::ones({2});
  shards.zero_grad(/*set_to_none=*/false);
  EXPECT_TRUE(shard.grad().equal(at::zeros({2})));
  shards.zero_grad(/*set_to_none=*/true);
  EXPECT_FALSE(shard.grad().defined());
}

TEST(ParameterShards, FollowAParameterToOtherMemory) {
  at::Tensor weight = at::ones({4});
  weight.requires_grad_();
  ParameterShards shards({weight}, 2, 0);
  const at::Tensor shard = shards.own().at(0);
  weight.set_data(at::full({4}, 2, at::kDouble));
  EXPECT_TRUE(shards.own().at(0).is_same(shard));
  EXPECT_EQ(shard.scalar_type(), at::kDouble);
  shard.detach().fill_(5);
  EXPECT_TRUE(weight.equal(at::tensor({5., 5., 2., 2.}, at::kDouble)));
}

}  // namespace
}  // namespace gpipe::internal
