// The form of a schedule that the search changes, and a fast simulator of it.
// Internal: users include automatic.h.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/search/problem.h"

namespace gpipe::internal {

// One action, or an overlapped pair of a forward and a backward.
struct Block {
  Action first, second;  // `second`: only of a pair

  bool is_pair() const { return first.fused_with_next; }
};

// A schedule as lists of steps. The O of a cell with CellMode::kOffload is not
// a step: it is right after the step of the cell's forward.
struct Order {
  std::vector<std::vector<Block>> ranks;
  std::vector<CellMode> modes;  // by Problem::cell()
};

// Converts a schedule to an order. A late recompute (a block of R and its
// backward) becomes two steps. Then R can fill time in which its rank would
// wait, and the peak memory of a rank without copies to the host depends only
// on the order of its actions. If `schedule` has an O, it must be where
// with_offload() puts it, and its cell must have an L and no R.
Order order_of(const Schedule& schedule, const Problem& problem);

// Converts an order to a schedule.
Schedule schedule_of(const Order& order, const Problem& problem);

// Returns whether a rank has copies to the host.
bool has_copies(const Order& order, int rank);

// Returns the most bytes that a rank without copies to the host holds at a
// time, as with_memory() counts them.
double peak_bytes(const Order& order, int rank, const Problem& problem);

// Returns whether every rank without copies to the host is within its memory
// limit.
bool fits(const Order& order, const Problem& problem);

// The place of a step in an order.
struct Position {
  int rank = -1, position = -1;
};

// The times of a step, in seconds.
struct BlockTime {
  double ready = 0;  // when all inputs from other stages have arrived
  double start = 0, end = 0;
  Position last;  // the step whose output arrived last; rank -1: needs no input
};

// The times of all steps of an order.
struct Times {
  std::vector<std::vector<BlockTime>> ranks;  // as Order::ranks
  double makespan = 0;                        // seconds
  // The most bytes that a rank holds at a time, as with_memory() counts them.
  // Computed for ranks with copies to the host; 0 for others.
  std::vector<double> peak_bytes;
};

// Returns whether every rank with copies to the host is within its memory
// limit.
bool fits(const Times& times, const Problem& problem);

// A simulator of the orders of one problem. It is as exact as simulate(), but
// uses the tables of Problem, and no heap memory after its first run.
// Not thread-safe.
class OrderSimulator {
 public:
  // `problem` must outlive this object.
  explicit OrderSimulator(const Problem& problem);

  // Fills `times` and returns true; returns false if a step can never start.
  // The makespan is that of simulate(). Complexity: linear; O(n log n) for the
  // n actions of a rank with copies to the host.
  bool run(const Order& order, Times* times);

 private:
  // The output of an action for a neighbouring stage.
  struct Slot {
    double arrival = 0;  // seconds
    int waiter = 0;      // the rank that waits for it
    Position made_by;
  };

  // The state of a rank in a run, in seconds.
  struct Rank {
    double end = 0;                               // of its last computation
    double to_host_free = 0, from_host_free = 0;  // when its links are free
  };

  // Bytes that a rank takes, or frees if negative.
  struct Change {
    double time = 0, bytes = 0;
    int number = 0;  // decides between equal times
  };

  bool begin(const Block& step, const Order& order, int rank, BlockTime* time);
  void reload(const Action& action, Rank& state, BlockTime* time);
  void offload(const Order& order, const Action& action, Rank& state);
  double peak_of(const Order& order, int rank, const Times& times);
  int slot_of(const Action& action) const;
  int slot_of_need(const Action& action) const;
  bool wait_for(const Action& action, int rank, BlockTime* time);
  void finish(const Action& action, Position place, double end);

  const Problem& problem_;
  std::vector<Slot> slots_;
  std::vector<double> link_free_;
  std::vector<int> awake_;
  std::vector<Rank> ranks_;
  std::vector<double> copied_;  // by cell: the end of its last copy
  std::vector<double> away_;    // by cell: the end of its copy to the host
  std::vector<Change> changes_;
};

}  // namespace gpipe::internal
