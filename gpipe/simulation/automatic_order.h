// A schedule while it is being searched for, and how long it takes.
// Not for users: automatic.h is.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/automatic_problem.h"

namespace gpipe {

// An action, or an overlapped pair of a forward and a backward; first.with_next
// says which.
struct Step {
  Action first, second;

  bool is_pair() const { return first.with_next; }
};

struct Order {
  std::vector<std::vector<Step>> ranks;
  std::vector<char> recomputed;  // of each cell: is there an R?
};

// A late recompute (a block of R and its backward) becomes two actions: as
// simulated, R then fills time in which its rank would wait, and what the rank
// holds at most depends on the order of its actions alone.
Order order_of(const Schedule& schedule, const Problem& problem);
Schedule schedule_of(const Order& order);

// The most bytes that a rank holds, by the sums of with_memory().
double peak_bytes(const Order& order, int rank, const Problem& problem);
// Is every rank within its limit?
bool fits(const Order& order, const Problem& problem);

// A step of an order.
struct Place {
  int rank = -1, position = -1;
};

struct StepTime {
  double ready = 0;  // all that it needs from other stages is there
  double start = 0, end = 0;
  Place last;  // of what it needs, what came last; rank -1: it needs nothing
};

struct Times {
  std::vector<std::vector<StepTime>> ranks;  // as Order::ranks
  double makespan = 0;
};

// Simulates orders of one problem: simulate() without looking anything up, and
// without memory from the heap after the first run.
class Stopwatch {
 public:
  explicit Stopwatch(const Problem& problem);

  // False if some step can never start. The makespan is that of simulate().
  // Complexity: linear.
  bool run(const Order& order, Times* times);

 private:
  struct Slot {  // of what others wait for
    double arrival = 0;
    int waiter = 0;  // rank
    Place made_by;
  };

  int slot_of(const Action& action) const;
  int slot_of_need(const Action& action) const;
  bool wait_for(const Action& action, int rank, StepTime* time);
  void finish(const Action& action, Place place, double end);

  const Problem& problem_;
  std::vector<Slot> slots_;
  std::vector<double> link_free_;
  std::vector<int> awake_;
};

}  // namespace gpipe
