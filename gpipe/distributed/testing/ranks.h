// Tests whose ranks are processes: this same binary, started again.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/processes.h"
#include "gpipe/distributed/world.h"

namespace gpipe::testing {

// What a rank does. It returns the exit code; what it throws is printed and is
// exit code 1.
using RankProgram = std::function<int()>;

// Registers a program under a name, at namespace scope:
//
//   const RankProgramEntry kTrain("train", [] { ...; return 0; });
struct RankProgramEntry {
  RankProgramEntry(const std::string& name, RankProgram program);
};

// In a rank: an argument of the test's, "" if there is none.
std::string argument(const std::string& name);
// In a rank: how to find the others, with short timeouts unless the arguments
// "timeout_ms" and "heartbeat_ms" say otherwise.
WorldOptions world_options();

// What a rank has printed, and how it ended.
struct RankResult {
  Exit exit;
  bool ended = false;
  std::string out, err;
};

// The ranks of one program, running.
class Ranks {
 public:
  using Arguments = std::vector<std::pair<std::string, std::string>>;

  Ranks(const std::string& program, int size, Arguments arguments = {});
  // Each rank with arguments of its own after those.
  Ranks(const std::string& program, const std::vector<Arguments>& arguments);
  ~Ranks();

  void signal(int rank, int number);
  // Until `rank` has printed this line, or a deadline of a minute passes:
  // false.
  bool wait_for_line(int rank, const std::string& line);

  // Until all have ended, or `limit` passes, after which they are killed.
  std::vector<RankResult> wait(
      std::chrono::seconds limit = std::chrono::seconds(120));
  // The same, but leaves out ranks that are not to be waited for.
  std::vector<RankResult> wait_but(const std::vector<int>& left_out,
                                   std::chrono::seconds limit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gpipe::testing
