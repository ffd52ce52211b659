// Every message that a step needs is in exactly one route, and no ranks wait
// for each other in a circle: for all schedules, sizes and layouts of skip
// tensors.
//
// The needed messages and the waits are derived here a second time, from the
// rules of a pipeline.
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/distributed/runner/messages.h"
#include "gpipe/runtime/step/train_step.h"
#include "gpipe/schedule/named.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/skip/layout.h"
#include "gpipe/testing/process.h"

namespace gpipe::internal {
namespace {

using Links = std::vector<SkipRoute>;
using Ids = std::vector<std::tuple<bool, int64_t, int64_t, int64_t, int64_t>>;

SkipRoute link(int64_t from, int64_t to) { return {{}, from, to}; }

auto id_of(const StageEdge& p) {
  return std::make_tuple(p.backward, p.from, p.to, p.link, p.microbatch);
}

Ids ids_of(const std::vector<MessageEdges>& bundles) {
  Ids ids;
  for (const MessageEdges& edges : bundles) {
    for (const StageEdge& each : edges) ids.push_back(id_of(each));
  }
  return ids;
}

// Returns layouts of skip tensors, by name, for a pipeline of `stages` stages.
std::map<std::string, Links> skip_layouts(int stages, int ranks) {
  std::map<std::string, Links> layouts{{"no skip", {}}};
  const auto add = [&](const std::string& name, int from, int to) {
    if (from >= 0 && from < to && to < stages) {
      layouts[name].push_back(link(from, to));
    }
  };
  add("one long skip", 0, stages - 1);
  for (int k = 0; k < stages / 2; ++k) add("nested", k, stages - 1 - k);
  for (int k = 0; k + 2 < stages; ++k) add("crossing", k, k + 2);
  for (int k = 1; k < stages; ++k) add("several from one stage", 0, k);
  add("several from one stage", 0, stages - 1);  // two to the same stage
  for (int k = 0; k + 1 < stages; ++k) add("several to one", k, stages - 1);
  // With a loop, stages s and s + ranks share a rank; with a V, s and 2 ranks -
  // 1 - s.
  for (int k = 0; k + ranks < stages; ++k) add("on one rank", k, k + ranks);
  for (int k = 0; k < ranks; ++k) add("on one rank", k, 2 * ranks - 1 - k);
  return layouts;
}

struct Case {
  std::string name;
  Schedule schedule;
  int ranks, microbatches;
  std::vector<int> rank_of_stage;
  std::map<std::string, Links> layouts;
  bool backward = false;
};

// Calls `check` for each case. Without GPIPE_THOROUGH=1: up to 6 ranks and 9
// micro-batches, so fewer, as many and more micro-batches than ranks and
// stages.
void for_each_case(const std::function<void(const Case&)>& check) {
  const int64_t most_ranks = testing::rounds(6, 8);
  const int64_t most_microbatches = testing::rounds(9, 16);
  for (const std::string& name : schedule_names()) {
    std::set<int> all_per_rank{1, 2};
    if (const auto fixed = fixed_stages_per_rank(name)) all_per_rank = {*fixed};
    for (int ranks = 1; ranks <= most_ranks; ++ranks) {
      for (const int per_rank : all_per_rank) {
        for (int m = 1; m <= most_microbatches; ++m) {
          Case each;
          try {
            each.schedule = named_schedule(name, ranks, m, per_rank);
          } catch (const std::invalid_argument&) {
            continue;  // a size that the schedule refuses
          }
          each.name = name + ", " + std::to_string(ranks) + " ranks, " +
                      std::to_string(per_rank) + " stages per rank, " +
                      std::to_string(m) + " micro-batches";
          each.ranks = ranks;
          each.microbatches = m;
          each.rank_of_stage = rank_of_stage(each.schedule);
          each.layouts =
              skip_layouts(static_cast<int>(each.rank_of_stage.size()), ranks);
          each.backward = name != "forward-only";
          check(each);
        }
      }
    }
  }
}

// Returns the messages from rank `from` to rank `to`, without an order.
std::multiset<Ids::value_type> needed(const Case& of, const Links& links,
                                      int from, int to) {
  std::multiset<Ids::value_type> ids;
  const auto add = [&](bool backward, int64_t a, int64_t b, int64_t link) {
    if (of.rank_of_stage[a] != from || of.rank_of_stage[b] != to) return;
    for (int i = 0; i < of.microbatches; ++i) {
      ids.emplace(backward, a, b, link, i);
    }
  };
  const auto both_ways = [&](int64_t a, int64_t b, int64_t link) {
    add(false, a, b, link);
    if (of.backward) add(true, b, a, link);
  };
  const auto stages = static_cast<int64_t>(of.rank_of_stage.size());
  for (int64_t s = 0; s + 1 < stages; ++s) both_ways(s, s + 1, -1);
  for (std::size_t k = 0; k < links.size(); ++k) {
    both_ways(links[k].from, links[k].to, static_cast<int64_t>(k));
  }
  return ids;
}

TEST(Route, HasEachMessageThatIsNeededOnceAndNoOther) {
  int cases = 0;
  std::set<std::string> names;
  for_each_case([&](const Case& each) {
    ++cases;
    names.insert(each.name.substr(0, each.name.find(',')));
    for (const auto& [layout, links] : each.layouts) {
      for (int from = 0; from < each.ranks; ++from) {
        for (int to = 0; to < each.ranks; ++to) {
          if (from == to) continue;
          const Ids ids =
              ids_of(route(each.schedule, each.rank_of_stage, links, from, to));
          ASSERT_EQ(std::multiset<Ids::value_type>(ids.begin(), ids.end()),
                    needed(each, links, from, to))
              << each.name << ", " << layout << ", from " << from << " to "
              << to;
        }
      }
    }
  });
  EXPECT_EQ(names.size(), schedule_names().size());
  EXPECT_GT(cases, testing::rounds(750, 1000));
}

// The counts in the documentation: m for each boundary or skip between two
// ranks, in each direction.
TEST(Route, HasTheNumbersOfAPipelineOfThreeRanks) {
  const Links links{link(0, 2), link(0, 1)};
  const auto count = [&](const Schedule& schedule, int from, int to) {
    return ids_of(route(schedule, {0, 1, 2}, links, from, to)).size();
  };
  for (const char* const name : {"fill-drain", "1f1b", "zb-h1"}) {
    const Schedule both = named_schedule(name, 3, 5, 1);
    EXPECT_EQ(count(both, 0, 1), 10u) << name;  // a boundary and a skip
    EXPECT_EQ(count(both, 1, 0), 10u) << name;
    EXPECT_EQ(count(both, 0, 2), 5u) << name;  // a skip
    EXPECT_EQ(count(both, 2, 0), 5u) << name;
    EXPECT_EQ(count(both, 1, 2), 5u) << name;  // a boundary
    EXPECT_EQ(count(both, 2, 1), 5u) << name;
  }
  const Schedule forward = named_schedule("forward-only", 3, 5, 1);
  EXPECT_EQ(count(forward, 0, 1), 10u);
  EXPECT_EQ(count(forward, 1, 0), 0u);
  EXPECT_EQ(count(forward, 2, 1), 0u);
}

TEST(Route, SendsSkipTensorsBeforeTheBoundary) {
  const Schedule schedule = named_schedule("fill-drain", 2, 2, 1);
  const Links links{link(0, 1), link(0, 1)};
  EXPECT_EQ(ids_of(route(schedule, {0, 1}, links, 0, 1)),
            (Ids{{false, 0, 1, 0, 0},
                 {false, 0, 1, 1, 0},
                 {false, 0, 1, -1, 0},
                 {false, 0, 1, 0, 1},
                 {false, 0, 1, 1, 1},
                 {false, 0, 1, -1, 1}}));
  EXPECT_EQ(ids_of(route(schedule, {0, 1}, links, 1, 0)),
            (Ids{{true, 1, 0, 0, 1},
                 {true, 1, 0, 1, 1},
                 {true, 1, 0, -1, 1},
                 {true, 1, 0, 0, 0},
                 {true, 1, 0, 1, 0},
                 {true, 1, 0, -1, 0}}));
}

// All outputs of an action for one rank become one message.
TEST(Route, BundlesWhatAnActionMakesForARank) {
  const Schedule schedule = named_schedule("1f1b", 3, 2, 1);
  // From the first stage to both others, twice to one of them.
  const Links links{link(0, 1), link(0, 2), link(0, 1)};
  const auto bundles = [&](int from, int to) {
    std::vector<Ids> all;
    for (const MessageEdges& each :
         route(schedule, {0, 1, 2}, links, from, to)) {
      all.push_back(ids_of({each}));
    }
    return all;
  };
  EXPECT_EQ(
      bundles(0, 1),
      (std::vector<Ids>{
          {{false, 0, 1, 0, 0}, {false, 0, 1, 2, 0}, {false, 0, 1, -1, 0}},
          {{false, 0, 1, 0, 1}, {false, 0, 1, 2, 1}, {false, 0, 1, -1, 1}},
      }));
  EXPECT_EQ(bundles(0, 2),
            (std::vector<Ids>{{{false, 0, 2, 1, 0}}, {{false, 0, 2, 1, 1}}}));
  EXPECT_EQ(bundles(2, 1),
            (std::vector<Ids>{{{true, 2, 1, -1, 0}}, {{true, 2, 1, -1, 1}}}));
}

TEST(Route, DoesNotDependOnWhatIsRecomputed) {
  for_each_case([](const Case& each) {
    if (each.microbatches > 4 || each.ranks > 4 || !each.backward) return;
    for (const Checkpoint mode :
         {Checkpoint::kAlways, Checkpoint::kExceptLast}) {
      const Schedule with = with_checkpoint(each.schedule, mode);
      for (const auto& [layout, links] : each.layouts) {
        for (int from = 0; from < each.ranks; ++from) {
          for (int to = 0; to < each.ranks; ++to) {
            if (from == to) continue;
            ASSERT_EQ(ids_of(route(with, each.rank_of_stage, links, from, to)),
                      ids_of(route(each.schedule, each.rank_of_stage, links,
                                   from, to)))
                << each.name << ", " << layout;
          }
        }
      }
    }
  });
}

// A simulation of all ranks without time. An action waits for its inputs; its
// outputs go to the senders of its rank. A sender passes its messages to the
// receiver, which accepts only those of the route, in order.
//
// If a rank, a sender or a receiver can go on, it still can after any step of
// another one. So if all end in one order of events, they end in every order,
// also in every order of a network.
class Simulation {
 public:
  // `room`: how many messages a sender holds before its rank must wait; none
  // means any number.
  Simulation(const Case& of, Links links, std::optional<std::size_t> room)
      : case_(of), links_(std::move(links)), room_(room), ranks_(of.ranks) {
    for (int from = 0; from < of.ranks; ++from) {
      for (int to = 0; to < of.ranks; ++to) {
        if (from == to) continue;
        routes_[{from, to}] = {
            {},
            ids_of(route(of.schedule, of.rank_of_stage, links_, from, to)),
            0};
      }
    }
  }

  // Returns what has gone wrong; "" if all ranks have ended and all messages
  // have arrived.
  std::string run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < case_.ranks; ++rank) {
        moved = pass_on(rank) || moved;
        moved = act(rank) || moved;
      }
      for (auto& [ends, way] : routes_) {
        if (way.sender.empty()) continue;
        if (way.taken == way.expected.size() ||
            way.expected[way.taken] != way.sender.front()) {
          return "rank " + std::to_string(ends.second) +
                 " waits for another message than rank " +
                 std::to_string(ends.first) + " sends";
        }
        arrived_.insert(way.sender.front());
        way.sender.pop_front();
        ++way.taken;
        moved = true;
      }
    }
    for (int rank = 0; rank < case_.ranks; ++rank) {
      if (ranks_[rank].next != case_.schedule.ranks[rank].size() ||
          !ranks_[rank].made.empty()) {
        return "rank " + std::to_string(rank) + " waits forever";
      }
    }
    for (const auto& [ends, way] : routes_) {
      if (way.taken != way.expected.size()) {
        return "rank " + std::to_string(ends.second) + " has a message left";
      }
    }
    return "";
  }

 private:
  using Id = Ids::value_type;
  struct Rank {
    std::size_t next = 0;  // index of the next action
    std::deque<Id> made;   // not yet in a sender
  };
  struct Way {
    std::deque<Id> sender;
    Ids expected;
    std::size_t taken;
  };

  int rank_of(int64_t stage) const { return case_.rank_of_stage[stage]; }
  int64_t stages() const {
    return static_cast<int64_t>(case_.rank_of_stage.size());
  }

  // Calls `use` for each input (`in`) or output of the action.
  template <typename Use>
  void values(const Action& action, bool in, Use use) const {
    const bool backward = internal::begins_backward(action.kind);
    if (!backward && action.kind != ActionKind::kForward) return;
    const int64_t j = action.stage, i = action.microbatch;
    const bool at_far_end = in == backward;
    for (std::size_t k = 0; k < links_.size(); ++k) {
      const SkipRoute& link = links_[k];
      if ((at_far_end ? link.from : link.to) != j) continue;
      const int64_t other = at_far_end ? link.to : link.from;
      use(Id{backward, in ? other : j, in ? j : other, k, i});
    }
    const int64_t other = at_far_end ? j + 1 : j - 1;
    if (other < 0 || other >= stages()) return;
    use(Id{backward, in ? other : j, in ? j : other, -1, i});
  }

  bool pass_on(int rank) {
    bool moved = false;
    auto& made = ranks_[rank].made;
    while (!made.empty()) {
      auto& sender =
          routes_.at({rank, rank_of(std::get<2>(made.front()))}).sender;
      if (room_ && sender.size() >= *room_) break;
      sender.push_back(made.front());
      made.pop_front();
      moved = true;
    }
    return moved;
  }

  // Runs the next action, or the next group of fused ones, if its inputs are
  // there.
  bool act(int rank) {
    Rank& mine = ranks_[rank];
    const auto& actions = case_.schedule.ranks[rank];
    if (!mine.made.empty() || mine.next == actions.size()) return false;
    std::size_t end = mine.next;
    while (actions[end].fused_with_next) ++end;
    ++end;
    bool ready = true;
    for (std::size_t k = mine.next; k < end; ++k) {
      values(actions[k], true, [&](const Id& id) {
        if (rank_of(std::get<1>(id)) != rank) {
          ready = ready && arrived_.count(id) > 0;
        }
      });
    }
    if (!ready) return false;
    for (; mine.next < end; ++mine.next) {
      const Action& action = actions[mine.next];
      // Inputs from the same rank must have been made before.
      values(action, true, [&](const Id& id) {
        if (rank_of(std::get<1>(id)) == rank && kept_.count(id) == 0) {
          ADD_FAILURE() << "rank " << rank << " has not made what it needs";
        }
      });
      values(action, false, [&](const Id& id) {
        if (rank_of(std::get<2>(id)) == rank) {
          kept_.insert(id);
        } else {
          mine.made.push_back(id);
        }
      });
    }
    return true;
  }

  const Case& case_;
  const Links links_;
  const std::optional<std::size_t> room_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, Way> routes_;
  std::set<Id> arrived_, kept_;
};

TEST(Route, LetsAllRanksEndIfOutletsTakeWhatTheyGet) {
  for_each_case([](const Case& each) {
    for (const auto& [layout, links] : each.layouts) {
      ASSERT_EQ(Simulation(each, links, std::nullopt).run(), "")
          << each.name << ", " << layout;
    }
  });
}

// Stricter than real senders, which hold any number of messages.
TEST(Route, LetsAllRanksEndIfOutletsTakeOneMessageAtATime) {
  for_each_case([](const Case& each) {
    for (const auto& [layout, links] : each.layouts) {
      ASSERT_EQ(Simulation(each, links, 1).run(), "")
          << each.name << ", " << layout;
    }
  });
}

// Shows that the two tests above can fail.
TEST(Route, SimulationSeesACircle) {
  Case circle;
  circle.ranks = 2;
  circle.microbatches = 2;
  circle.backward = true;
  circle.rank_of_stage = {0, 1};
  circle.schedule.ranks = {
      // Waits for a gradient before rank 1 can have made it.
      {{0, ActionKind::kForward, 0},
       {0, ActionKind::kBackward, 0},
       {0, ActionKind::kForward, 1},
       {0, ActionKind::kBackward, 1}},
      {{1, ActionKind::kForward, 0},
       {1, ActionKind::kForward, 1},
       {1, ActionKind::kBackward, 0},
       {1, ActionKind::kBackward, 1}},
  };
  EXPECT_EQ(Simulation(circle, {}, std::nullopt).run(), "rank 0 waits forever");
}

}  // namespace
}  // namespace gpipe::internal
