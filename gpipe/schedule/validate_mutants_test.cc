// Compares validate() with a brute-force check, on mutations of valid
// schedules.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/schedule/named.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/text.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/testing/process.h"
#include "gpipe/testing/thrown.h"

namespace gpipe {
namespace {

using Random = std::mt19937;

int below(Random& random, std::size_t n) {
  return std::uniform_int_distribution<int>(0, static_cast<int>(n) - 1)(random);
}

// ---- Brute force: counts the work, then lets ranks send messages.

// Returns whether every stage is on one rank and has each of its actions once.
bool work_is_complete(const Schedule& schedule) {
  std::map<int, std::set<std::size_t>> ranks_of;
  std::set<int> microbatches;
  std::map<std::tuple<int, int, ActionKind>, int> count;
  bool trains = false;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      ranks_of[action.stage].insert(rank);
      microbatches.insert(action.microbatch);
      ++count[{action.stage, action.microbatch, action.kind}];
      trains |= internal::begins_backward(action.kind) ||
                action.kind == ActionKind::kBackwardWeight;
    }
  }
  if (ranks_of.empty()) return false;
  const int stages = ranks_of.rbegin()->first + 1;
  const int size = *microbatches.rbegin() + 1;
  for (int stage = 0; stage < stages; ++stage) {
    if (ranks_of[stage].size() != 1) return false;
    for (int i = 0; i < size; ++i) {
      const int whole = count[{stage, i, ActionKind::kBackward}];
      const int input = count[{stage, i, ActionKind::kBackwardInput}];
      const int weight = count[{stage, i, ActionKind::kBackwardWeight}];
      const int recompute = count[{stage, i, ActionKind::kRecompute}];
      const int offload = count[{stage, i, ActionKind::kOffload}];
      if (offload != count[{stage, i, ActionKind::kReload}]) return false;
      if (offload > (trains ? 1 : 0)) return false;
      const bool once = (whole == 1 && input == 0 && weight == 0) ||
                        (whole == 0 && input == 1 && weight == 1);
      if (count[{stage, i, ActionKind::kForward}] != 1) return false;
      if (trains ? !once || recompute > 1 : recompute > 0) return false;
    }
  }
  return true;
}

using Block = std::vector<Action>;

// Fills `blocks` with the blocks of a rank; an action without fused_with_next
// is a block of its own. Returns false if a block is not allowed.
bool split_into_blocks(const std::vector<Action>& actions,
                       std::vector<Block>& blocks) {
  bool open = false;
  for (const Action& action : actions) {
    if (!open) blocks.emplace_back();
    blocks.back().push_back(action);
    open = action.fused_with_next;
  }
  for (const Block& block : blocks) {
    if (block.size() == 1) continue;
    if (block.size() > 2) return false;
    const Action &a = block[0], &b = block[1];
    const bool same_cell = a.stage == b.stage && a.microbatch == b.microbatch;
    const bool overlap =
        (a.kind == ActionKind::kForward && internal::begins_backward(b.kind)) ||
        (internal::begins_backward(a.kind) && b.kind == ActionKind::kForward);
    const bool late =
        a.kind == ActionKind::kRecompute && internal::begins_backward(b.kind);
    if (!(overlap && !same_cell) && !(late && same_cell)) return false;
  }
  return !open;
}

// The ranks of a schedule, which wait for messages. Sends are buffered.
class Ranks {
 public:
  explicit Ranks(const Schedule& schedule)
      : schedule_(schedule), arrived_(schedule.ranks.size()) {
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (const Action& action : schedule.ranks[rank]) {
        rank_of_[action.stage] = rank;
        last_ = std::max(last_, action.stage);
        if (action.kind == ActionKind::kRecompute) {
          recomputed_.insert({action.stage, action.microbatch});
        }
      }
    }
  }

  // Returns whether all actions run.
  bool get_done() {
    const std::size_t ranks = schedule_.ranks.size();
    std::vector<std::vector<Block>> blocks(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (!split_into_blocks(schedule_.ranks[rank], blocks[rank])) return false;
    }
    std::vector<std::size_t> next(ranks, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (next[rank] == blocks[rank].size()) continue;
        const Block& block = blocks[rank][next[rank]];
        if (!std::all_of(block.begin(), block.end(), [&](const Action& action) {
              return has_arrived(rank, action);
            })) {
          continue;
        }
        for (const Action& action : block) {
          if (!run(action)) return false;
        }
        ++next[rank];
        moved = true;
      }
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (next[rank] < blocks[rank].size()) return false;
    }
    return true;
  }

 private:
  // A message to a stage: 'a' (activation) or 'g' (gradient), stage,
  // micro-batch.
  using Message = std::tuple<char, int, int>;

  bool has_arrived(std::size_t rank, const Action& action) const {
    const int stage = action.stage, i = action.microbatch;
    if (action.kind == ActionKind::kForward && stage > 0) {
      return arrived_[rank].count({'a', stage, i}) == 1;
    }
    if (internal::begins_backward(action.kind) && stage < last_) {
      return arrived_[rank].count({'g', stage, i}) == 1;
    }
    return true;
  }

  // Returns false if an action of its own rank that it needs is not done.
  bool run(const Action& action) {
    const int stage = action.stage, i = action.microbatch;
    const auto did = [&](ActionKind kind) {
      return done_.count({kind, stage, i}) == 1;
    };
    switch (action.kind) {
      case ActionKind::kForward:
        if (stage < last_) {
          arrived_[rank_of_[stage + 1]].insert({'a', stage + 1, i});
        }
        if (recomputed_.count({stage, i}) == 0) is_held_.insert({stage, i});
        break;
      case ActionKind::kRecompute:
        if (!did(ActionKind::kForward) || did(ActionKind::kBackward) ||
            did(ActionKind::kBackwardInput)) {
          return false;
        }
        is_held_.insert({stage, i});
        break;
      case ActionKind::kOffload:
        // A recomputed cell holds its graph from R on, others from F on.
        if (is_held_.erase({stage, i}) == 0) return false;
        break;
      case ActionKind::kReload:
        if (!did(ActionKind::kOffload)) return false;
        is_held_.insert({stage, i});
        break;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        if (!did(ActionKind::kForward)) return false;
        if (recomputed_.count({stage, i}) == 1 &&
            !did(ActionKind::kRecompute)) {
          return false;
        }
        if (is_held_.erase({stage, i}) == 0) return false;
        if (stage > 0) {
          arrived_[rank_of_[stage - 1]].insert({'g', stage - 1, i});
        }
        break;
      case ActionKind::kBackwardWeight:
        if (!did(ActionKind::kBackwardInput)) return false;
        break;
    }
    done_.insert({action.kind, stage, i});
    return true;
  }

  const Schedule& schedule_;
  int last_ = 0;  // the last stage
  std::map<int, std::size_t> rank_of_;
  std::set<std::pair<int, int>> recomputed_;
  std::set<std::pair<int, int>> is_held_;  // cells whose graph is on the device
  std::vector<std::set<Message>> arrived_;
  std::set<std::tuple<ActionKind, int, int>> done_;
};

bool brute_force(const Schedule& schedule) {
  return work_is_complete(schedule) && Ranks(schedule).get_done();
}

// ---- Valid schedules.

// Returns a random valid schedule: any stage on any rank, backwards in one or
// two parts, some recomputed, some offloaded. The order is one in which a
// single processor could run all actions.
Schedule any_schedule(Random& random) {
  const int ranks = 1 + below(random, 4), stages = 1 + below(random, 5);
  const int microbatches = 1 + below(random, 6);
  const bool trains = below(random, 8) > 0;
  std::vector<int> rank_of;
  for (int s = 0; s < stages; ++s) rank_of.push_back(below(random, ranks));
  // The remaining actions of each stage and micro-batch, the next one last.
  std::vector<std::vector<Action>> cells;
  for (int s = 0; s < stages; ++s) {
    for (int i = 0; i < microbatches; ++i) {
      auto& cell = cells.emplace_back();
      if (trains && below(random, 2) == 0) {
        cell = {{s, ActionKind::kBackwardWeight, i},
                {s, ActionKind::kBackwardInput, i}};
      } else if (trains) {
        cell = {{s, ActionKind::kBackward, i}};
      }
      if (trains && below(random, 3) == 0) {
        cell.push_back({s, ActionKind::kReload, i});
        cell.push_back({s, ActionKind::kOffload, i});
      }
      if (trains && below(random, 3) == 0) {
        cell.push_back({s, ActionKind::kRecompute, i});
      }
      cell.push_back({s, ActionKind::kForward, i});
    }
  }
  std::set<std::tuple<int, int>> forwards, backwards;
  Schedule schedule;
  schedule.ranks.resize(ranks);
  for (bool left = true; left;) {
    left = false;
    // With probability 1/2, the next action of the same cell follows at once.
    std::shuffle(cells.begin(), cells.end(), random);
    for (auto& cell : cells) {
      while (!cell.empty()) {
        left = true;
        const Action& action = cell.back();
        const int s = action.stage, i = action.microbatch;
        const bool is_forward = action.kind == ActionKind::kForward;
        if (is_forward && s > 0 && !forwards.count({s - 1, i})) break;
        if (internal::begins_backward(action.kind) && s + 1 < stages &&
            !backwards.count({s + 1, i})) {
          break;
        }
        if (is_forward) forwards.insert({s, i});
        if (internal::begins_backward(action.kind)) backwards.insert({s, i});
        schedule.ranks[rank_of[s]].push_back(action);
        cell.pop_back();
        if (below(random, 2) == 0) break;
      }
    }
  }
  return schedule;
}

// Makes blocks of some neighbouring actions if the schedule stays valid.
void add_blocks(Schedule& schedule, Random& random) {
  for (auto& actions : schedule.ranks) {
    for (std::size_t k = 0; k + 1 < actions.size(); ++k) {
      if (below(random, 2) == 0) continue;
      actions[k].fused_with_next = true;
      if (!brute_force(schedule)) actions[k].fused_with_next = false;
    }
  }
}

// Returns `schedule` with some cells offloaded.
Schedule some_offloaded(const Schedule& schedule, Random& random) {
  const int every = 1 + below(random, 3), ahead = below(random, 4);
  return with_offload(
      schedule, [=](int stage, int i) { return (stage + i) % every == 0; },
      ahead);
}

Schedule valid_schedule(Random& random) {
  Schedule schedule;
  if (below(random, 2) == 0) {
    schedule = any_schedule(random);
  } else {
    static const auto names = schedule_names();
    const std::string& name = names[below(random, names.size())];
    const int ranks = 1 + below(random, 4), microbatches = 1 + below(random, 6);
    schedule = named_schedule(name, ranks, microbatches,
                              fixed_stages_per_rank(name).value_or(2));
    const int from = below(random, 2 * microbatches);
    schedule = with_recompute(
        schedule, [&](int i) { return i >= from; },
        static_cast<RecomputePlacement>(below(random, 3)));
    if (below(random, 2) == 0) schedule = some_offloaded(schedule, random);
  }
  add_blocks(schedule, random);
  return schedule;
}

// ---- Mutations.

enum Mutation {
  kDrop,
  kDouble,
  kSwap,
  kMove,
  kMoveToOther,
  kBlock,
  kMutations
};

void mutate(Schedule& schedule, Mutation mutation, Random& random) {
  const int from = below(random, schedule.ranks.size());
  auto& actions = schedule.ranks[from];
  if (actions.empty()) return;
  const auto chosen = actions.begin() + below(random, actions.size());
  const Action action = *chosen;
  const auto insert = [&](std::vector<Action>& into) {
    into.insert(into.begin() + below(random, into.size() + 1), action);
  };
  switch (mutation) {
    case kDrop:
      actions.erase(chosen);
      break;
    case kDouble:
      insert(schedule.ranks[below(random, schedule.ranks.size())]);
      break;
    case kSwap:
      std::swap(*chosen, actions[below(random, actions.size())]);
      break;
    case kMove:
      actions.erase(chosen);
      insert(actions);
      break;
    case kMoveToOther:
      actions.erase(chosen);
      insert(schedule.ranks[below(random, schedule.ranks.size())]);
      break;
    case kBlock:
      chosen->fused_with_next = !chosen->fused_with_next;
      break;
    case kMutations:
      break;
  }
}

std::string objection_to(const Schedule& schedule) {
  return testing::thrown<std::invalid_argument>([&] { validate(schedule); },
                                                "");
}

// Expects that the ranks in the text of a deadlock do wait for each other.
void check_circle(const Schedule& schedule, const std::string& message) {
  static const std::regex waits(
      R"(waits at (\w+) \(position (\d+)\) for (\w+) of rank (\d+) )"
      R"(\(position (\d+)\))");
  std::vector<std::size_t> ranks = {
      static_cast<std::size_t>(std::stoi(message.substr(15)))};
  std::map<std::size_t, int> waits_at;
  std::vector<std::pair<std::size_t, int>> waited_for;
  for (std::sregex_iterator it(message.begin(), message.end(), waits), end;
       it != end; ++it) {
    const std::smatch& part = *it;
    const std::size_t rank = ranks.back(), other = std::stoi(part[4]);
    const int here = std::stoi(part[2]), there = std::stoi(part[5]);
    EXPECT_EQ(to_string(schedule.ranks.at(rank).at(here)), part[1]) << message;
    EXPECT_EQ(to_string(schedule.ranks.at(other).at(there)), part[3])
        << message;
    EXPECT_TRUE(rank != other || there > here) << message;
    waits_at[rank] = here;
    waited_for.emplace_back(other, there);
    ranks.push_back(other);
  }
  EXPECT_GE(ranks.size(), 2u) << message;
  EXPECT_EQ(ranks.front(), ranks.back()) << message;
  EXPECT_EQ(waits_at.size(), waited_for.size()) << message;
  for (const auto& [rank, position] : waited_for) {
    EXPECT_GE(position, waits_at.at(rank)) << message;
  }
}

TEST(ValidateMutants, AcceptsWhatBruteForceAcceptsAndNothingElse) {
  Random random(0);
  std::map<Mutation, int> accepted, refused;
  const int64_t wanted = testing::rounds(2500, 10000);
  int mutants = 0, deadlocks = 0, blocks = 0;
  while (mutants < wanted) {
    const Schedule valid = valid_schedule(random);
    ASSERT_TRUE(brute_force(valid)) << to_csv(valid);
    ASSERT_EQ(objection_to(valid), "") << to_csv(valid);
    for (const auto& actions : valid.ranks) {
      for (const Action& action : actions) blocks += action.fused_with_next;
    }
    for (int k = 0; k < 20; ++k, ++mutants) {
      const auto mutation = static_cast<Mutation>(below(random, kMutations));
      Schedule mutant = valid;
      mutate(mutant, mutation, random);
      if (below(random, 4) == 0) mutate(mutant, mutation, random);
      const std::string message = objection_to(mutant);
      ASSERT_EQ(message.empty(), brute_force(mutant)) << message << "\n"
                                                      << to_csv(mutant);
      ++(message.empty() ? accepted : refused)[mutation];
      if (message.rfind("deadlock", 0) != 0) continue;
      ++deadlocks;
      check_circle(mutant, message);
    }
  }
  // Both results occur, for all mutations except kDouble, which is never valid.
  for (int mutation = 0; mutation < kMutations; ++mutation) {
    EXPECT_GT(refused[static_cast<Mutation>(mutation)], wanted / 100)
        << mutation;
    if (mutation == kDouble) continue;
    EXPECT_GT(accepted[static_cast<Mutation>(mutation)], wanted / 500)
        << mutation;
  }
  EXPECT_GT(deadlocks, wanted * 3 / 100);
  EXPECT_GT(blocks, wanted * 3 / 100);
}

TEST(ValidateMutants, OffloadsMayBeAddedToWhateverIsValid) {
  Random random(2);
  const int64_t schedules = testing::rounds(500, 2000);
  int64_t pairs = 0;
  for (int64_t k = 0; k < schedules; ++k) {
    const Schedule schedule = valid_schedule(random);
    const Schedule out = some_offloaded(schedule, random);
    ASSERT_TRUE(brute_force(out)) << to_csv(schedule) << "\n" << to_csv(out);
    ASSERT_EQ(objection_to(out), "") << to_csv(schedule) << "\n" << to_csv(out);
    for (std::size_t r = 0; r < out.ranks.size(); ++r) {
      pairs +=
          static_cast<int64_t>(out.ranks[r].size() - schedule.ranks[r].size()) /
          2;
    }
  }
  EXPECT_GT(pairs, schedules);
}

// The schedules have blocks of either order, and backwards in one or two parts.
TEST(ValidateMutants, RecomputesMayBeAddedToWhateverIsValid) {
  Random random(1);
  const int64_t schedules = testing::rounds(500, 2000);
  std::map<ActionKind, int>
      first;  // number of blocks, by kind of the first action
  for (int64_t k = 0; k < schedules; ++k) {
    const Schedule schedule = select(
        valid_schedule(random),
        [](const Action& a) { return a.kind != ActionKind::kRecompute; });
    for (const auto& actions : schedule.ranks) {
      for (const Action& action : actions)
        first[action.kind] += action.fused_with_next;
    }
    for (const auto placement :
         {RecomputePlacement::kBeforeBackward,
          RecomputePlacement::kWithBackward, RecomputePlacement::kAhead}) {
      const Schedule out = with_recompute(
          schedule, [](int) { return true; }, placement);
      ASSERT_TRUE(brute_force(out)) << to_csv(schedule) << "\n" << to_csv(out);
      ASSERT_EQ(objection_to(out), "") << to_csv(schedule) << "\n"
                                       << to_csv(out);
    }
  }
  for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward,
                                ActionKind::kBackwardInput}) {
    EXPECT_GT(first[kind], schedules / 20);
  }
}

}  // namespace
}  // namespace gpipe
