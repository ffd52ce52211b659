// A failure of one rank ends the step on all ranks, with one error that says
// which rank has failed, and leaves nothing behind.
//
// Here: a rank throws an exception, has got other options than the others, or
// sends wrong messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "gpipe/base/crc32c.h"
#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/runner/agreement.h"
#include "gpipe/distributed/testing/faulty_ranks.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/distributed/world/exchanges.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/devices.h"

namespace gpipe::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using torch::Tensor;

// Rank 1 sends wrong messages in its first step: activations to rank 2, or
// gradients to rank 0.
const RankProgramEntry kGarbage("garbage", [] {
  torch::set_num_threads(1);
  try {
    const auto world = World::connect(world_options());
    Trainee trainee(world->size());
    DistributedPipeline pipeline = make_pipeline(trainee, world);
    if (world->rank() != 1) {
      train_step(pipeline);
      return 0;
    }
    internal::Communicator& links = *internal::communicator_of(*world);
    const internal::Tags tags(links.next_channel() - 1);  // of the pipeline
    const std::string schedule =
        to_csv(one_forward_one_backward(world->size(), kMicrobatches));
    internal::Message message;
    message.id.step = 1;
    message.id.schedule = internal::crc32c(
        schedule.data(), static_cast<int64_t>(schedule.size()));
    internal::StartReport report;
    report.schedule = message.id.schedule;
    report.with_backward = report.training = true;
    internal::all_gather(links, tags.words, report.encode(),
                         "the beginning of a step");
    message.id.from_stage = 1;
    message.id.to_stage = 2;
    message.value_kind = static_cast<uint8_t>(internal::Value::Kind::kTensor);
    message.rows = kRows / kMicrobatches;
    message.total_rows = kRows;
    const Tensor truth = torch::ones({message.rows, kWidth}, torch::kFloat);
    Tensor said = torch::ones({message.rows, kWidth}, torch::kDouble);
    if (argument("kind") == "another message") message.id.microbatch = 3;
    if (argument("kind") == "another type") said = truth.to(torch::kInt);
    message.tensors.push_back(
        internal::spec_of(said, said.is_floating_point()));
    int to = 2;
    if (argument("kind").find("gradients") != std::string::npos) {
      to = message.id.to_stage = 0;
      message.id.direction = internal::Direction::kBackward;
      message.value_kind = static_cast<uint8_t>(internal::Value::Kind::kVector);
      message.tensors.assign(argument("kind") == "too few gradients" ? 0 : 2,
                             internal::TensorSpec());
    }
    const std::vector<uint8_t> bytes = internal::encode(message);
    Tensor header = torch::empty({internal::kHeaderBytes}, torch::kByte);
    std::memcpy(header.mutable_data_ptr(), bytes.data(),
                internal::kHeaderBytes);
    if (argument("kind") == "random bytes") header.random_(0, 256);
    const auto action = [] { return std::string("sending garbage"); };
    if (to == 0) {
      // Waits for an output, to which a gradient can be sent.
      const Tensor output = torch::empty_like(header);
      links.wait(links.receive(output, 0, tags.header, action), 0, action);
    }
    const auto work = links.send(header, to, tags.header, action);
    const auto payload = links.send(
        internal::bytes_of(truth), to,
        tags.payload_of(internal::bytes_of(truth).numel(), truth.scalar_type()),
        action);
    links.wait(work, to, action);
    links.wait(payload, to, action);
    say("payload", "taken");
  } catch (...) {
    say_exception(std::current_exception());
    return kFailedAsTold;
  }
  return 0;
});

// A round in which all ranks fail, and what to expect of each of them.
struct FaultCase {
  Round round;
  std::function<void(int rank, const RankResult& result, Words words)> expect;
};

void run_cases(const std::vector<FaultCase>& cases, seconds limit) {
  std::vector<Round> rounds;
  for (const FaultCase& each : cases) rounds.push_back(each.round);
  const auto all_results = run_rounds(rounds, limit);
  for (std::size_t k = 0; k < cases.size(); ++k) {
    SCOPED_TRACE(rounds[k].name);
    for (std::size_t rank = 0; rank < all_results[k].size(); ++rank) {
      SCOPED_TRACE(rank_text(static_cast<int>(rank)));
      const RankResult& result = all_results[k][rank];
      cases[k].expect(static_cast<int>(rank), result,
                      expect_failed_in_order(result));
    }
  }
}

TEST(Fault, AnExceptionAnywhereIsAnErrorEverywhere) {
  constexpr int kRanks = 3;
  // LibTorch runs the backwards of accelerators on threads of its own, where
  // such an exception ends the process.
  const auto ends_the_process = [](const std::string& place,
                                   const std::string& deed) {
    return place == "backward" && deed == "other" && !device().is_cpu();
  };
  const std::map<std::string, std::pair<std::string, std::string>> deeds{
      {"std", {"runtime_error", kFaultText}},
      {"c10", {"NotImplementedError", kFaultText}},
      {"other", {"int", "no std::exception"}},
      {"peer", {"PeerError", kFaultText}}};
  std::vector<FaultCase> cases;
  int next = 0;
  for (const std::string place : {"forward", "loss", "backward"}) {
    for (const auto& [deed, expected] : deeds) {
      if (ends_the_process(place, deed)) continue;
      const int at_fault = place == "loss" ? kRanks - 1 : next++ % kRanks;
      std::vector<Arguments> arguments(kRanks);
      arguments[at_fault] = {{"place", place}, {"deed", deed}, {"at", "2"}};
      const auto expect = [=, expected = expected](
                              int rank, const RankResult& result, Words words) {
        EXPECT_EQ(words["grads"], "as before");
        if (rank == at_fault) {
          EXPECT_EQ(words["type"], expected.first);
          EXPECT_THAT(words["place"],
                      HasSubstr("partition " + std::to_string(rank)));
          return;
        }
        expect_peer_error(result, "has failed", at_fault);
        EXPECT_EQ(words["reporter"], std::to_string(at_fault));
        EXPECT_THAT(words["what"], HasSubstr(expected.second));
        EXPECT_THAT(words["action"],
                    HasSubstr("partition " + std::to_string(at_fault) +
                              ", micro-batch "));
        EXPECT_THAT(words["action"],
                    HasSubstr(place == "backward" ? "backward" : "forward"));
        EXPECT_THAT(words["text"],
                    HasSubstr(rank_text(at_fault) + " has failed: "));
      };
      cases.push_back({{deed + " in " + place + " of " + rank_text(at_fault),
                        "train", arguments},
                       expect});
    }
  }
  run_cases(cases, seconds(60));
}

TEST(Fault, AnExceptionInACopyToTheHostOrBackIsAnErrorEverywhere) {
  constexpr int kRanks = 3;
  std::vector<FaultCase> cases;
  for (const std::string place : {"offload", "reload"}) {
    for (int at_fault = 0; at_fault < kRanks; ++at_fault) {
      std::vector<Arguments> arguments(
          kRanks, {{"schedule", "offload"}, {"checkpoint", "never"}});
      arguments[at_fault] =
          join(arguments[at_fault],
               {{"place", place}, {"deed", "memory"}, {"at", "1"}});
      const auto expect = [=](int rank, const RankResult& result, Words words) {
        EXPECT_EQ(words["grads"], "as before");
        if (rank == at_fault) {
          EXPECT_EQ(words["type"], "OutOfMemoryError");
          EXPECT_EQ(words["place"], "partition " + std::to_string(rank) +
                                        ", micro-batch 0, " + place);
          return;
        }
        expect_peer_error(result, "has failed", at_fault);
        EXPECT_THAT(words["what"], HasSubstr(kFaultText));
        EXPECT_THAT(words["action"], HasSubstr(place));
      };
      cases.push_back(
          {{place + " of " + rank_text(at_fault), "train", arguments}, expect});
    }
  }
  run_cases(cases, seconds(60));
}

// Runs two ranks, of which rank `at_fault` fails in sending or receiving.
// Expects its own exception there, and a PeerError that names it on the other
// rank.
void expect_failed_on_the_way(int at_fault, const Arguments& deed,
                              const std::string& type,
                              const std::string& what) {
  std::vector<Arguments> arguments(2);
  arguments[at_fault] = deed;
  const auto expect = [&](int rank, const RankResult& result, Words words) {
    EXPECT_EQ(words["grads"], "as before");
    if (rank == at_fault) {
      EXPECT_EQ(words["type"], type);
      EXPECT_THAT(words["text"], HasSubstr(what));
      return;
    }
    expect_peer_error(result, "has failed", at_fault);
    EXPECT_THAT(words["what"], HasSubstr(what));
    EXPECT_EQ(words["action"],
              "the output of stage 0 for micro-batch 0 of step 1, to stage 1");
  };
  run_cases({{{type, "train", arguments}, expect}}, seconds(60));
}

TEST(Fault, WhatCannotBeSentIsTheFaultOfItsSender) {
  expect_failed_on_the_way(0, {{"returns", "sparse"}}, "c10::Error",
                           "cannot be sent to another rank; make it dense with "
                           "to_dense() first");
}

TEST(Fault, MemoryThatARankLacksForAMessageIsItsOwnFault) {
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank_text(rank));
    expect_failed_on_the_way(
        rank,
        {{"place", rank == 0 ? "message-out" : "message-in"},
         {"deed", "memory"}},
        "OutOfMemoryError", kFaultText);
  }
}

TEST(Fault, AnExceptionWhileAPipelineIsMadeIsAnErrorEverywhere) {
  constexpr int kRanks = 3, kAtFault = 1;
  std::vector<Arguments> arguments(
      kRanks, {{"layers", "built"}, {"timeout_ms", "60000"}});
  arguments[kAtFault] =
      join(arguments[kAtFault],
           {{"place", "builder"}, {"deed", "c10"}, {"at", "0"}});
  const auto expect = [](int rank, const RankResult& result, Words words) {
    if (rank == kAtFault) {
      EXPECT_EQ(words["type"], "NotImplementedError");
      return;
    }
    expect_peer_error(result, "has failed", kAtFault);
    EXPECT_EQ(words["action"], "making the pipeline");
    EXPECT_THAT(words["what"], HasSubstr(kFaultText));
  };
  // The failure must arrive long before the timeout.
  run_cases({{{"builder", "train", arguments}, expect}}, seconds(30));
}

// Another number of rows in the input than in the target is an error of the
// last rank, which refuses the step.
TEST(Fault, RowsThatDifferAreRefused) {
  const auto expect = [](int rank, const RankResult&, Words words) {
    EXPECT_EQ(words["type"], rank == 2 ? "ValueError" : "PeerError");
    if (rank < 2) {
      EXPECT_EQ(words["fault"], "has refused its arguments");
    }
    EXPECT_THAT(words["text"],
                HasSubstr(" rows, but the target of rank 2 has "));
  };
  std::vector<FaultCase> cases;
  for (const auto& [rank, name] :
       {std::pair(2, "target_rows"), std::pair(0, "input_rows")}) {
    std::vector<Arguments> arguments(3, {{"timeout_ms", "20000"}});
    arguments[rank] = join(arguments[rank], {{name, "12"}});
    cases.push_back({{name, "train", arguments}, expect});
  }
  run_cases(cases, seconds(30));
}

struct Difference {
  std::string name;
  int rank;  // the rank with these arguments
  Arguments arguments;
  std::string fault, text;  // reported by all ranks
};

TEST(Fault, RanksThatDifferAreTold) {
  const std::vector<Difference> differences{
      {"world size",
       1,
       {{"WORLD_SIZE", "4"}},
       "disagrees",
       "give all the same WORLD_SIZE"},
      {"rank",
       2,
       {{"RANK", "1"}},
       "disagrees",
       "there are two processes with rank 1 at 127.0.0.1:"},
      {"model", 2, {{"inner", "12"}}, "disagrees", "layer '0' is "},
      {"type", 1, {{"dtype", "float"}}, "disagrees", "layer '0' is "},
      {"names",
       1,
       {{"layers", "named"}},
       "disagrees",
       "the name of layer 5 is head on rank 1, but 5 on rank 0; give all "},
      {"builder",
       2,
       {{"layers", "built"}},
       "disagrees",
       "the model is a LayerBuilder on rank 2, but a Sequential on rank 0"},
      {"balance",
       1,
       {{"balance", "other"}},
       "disagrees",
       "the balance is [1, 2, 3] on rank 1, but [2, 2, 2] on rank 0"},
      {"checkpoint mode",
       2,
       {{"checkpoint", "never"}},
       "disagrees",
       "the checkpoint mode is never on rank 2, but except_last on rank 0"},
  };
  std::vector<FaultCase> cases;
  for (const Difference& each : differences) {
    std::vector<Arguments> arguments(3, {{"timeout_ms", "20000"}});
    arguments[each.rank] = join(arguments[each.rank], each.arguments);
    const auto expect = [&](int, const RankResult&, Words words) {
      EXPECT_EQ(words["type"], "PeerError");
      EXPECT_EQ(words["fault"], each.fault);
      EXPECT_THAT(words["text"], HasSubstr(each.text));
    };
    cases.push_back({{each.name, "train", arguments}, expect});
  }
  run_cases(cases, seconds(30));
}

TEST(Fault, GarbageFromAPeerIsAnErrorOnAllRanks) {
  const std::vector<std::array<std::string, 3>> kinds{
      {"random bytes", "disagrees", "not a message of gpipe"},
      {"another message", "disagrees", "micro-batch 3"},
      {"too few gradients", "disagrees",
       "with 0 gradients for the 1 tensors that went there"},
      {"too many gradients", "disagrees",
       "with 2 gradients for the 1 tensors that went there"},
      // The ranks wait until their timeout for the announced tensor.
      {"another size", "has not answered in time", "nothing came for 3000 ms"},
      {"another type", "has not answered in time", "nothing came for 3000 ms"}};
  // The rounds that reach their timeout run apart from the others. The ranks
  // must also meet within the timeout, which takes longer when many start.
  std::vector<FaultCase> cases, late;
  for (const auto& [kind, fault, text] : kinds) {
    const bool in_time = fault == "disagrees";
    const Arguments arguments{{"kind", kind},
                              {"checkpoint", "never"},
                              {"timeout_ms", in_time ? "20000" : "3000"}};
    const auto expect = [=, &fault = fault, &text = text](
                            int, const RankResult&, Words words) {
      EXPECT_EQ(words["type"], "PeerError");
      EXPECT_EQ(words["fault"], fault) << words["text"];
      EXPECT_THAT(words["text"], HasSubstr(text));
      if (in_time) {
        EXPECT_EQ(words["rank"], "1");
      }
      EXPECT_EQ(words.count("payload"), 0u);
    };
    (in_time ? cases : late)
        .push_back(
            {{kind, "garbage", std::vector<Arguments>(3, arguments)}, expect});
  }
  run_cases(cases, seconds(30));
  run_cases(late, seconds(30));
}

}  // namespace
}  // namespace gpipe::testing
