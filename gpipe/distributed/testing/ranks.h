// Tests whose ranks are processes: the test's binary, started again. And what
// the operating system says of processes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/base/processes.h"
#include "gpipe/distributed/world.h"

namespace gpipe::testing {

// The program of a rank. It returns the exit code. An exception is printed and
// gives exit code 1.
using RankProgram = std::function<int()>;

// Registers a program at namespace scope, under a name that no other program of
// the test has. A program with a parameter gets a world of world_options(), has
// one intra-op thread, and returns nothing:
//
//   const RankProgramEntry kTrain("train", [](auto& world) { ... });
struct RankProgramEntry {
  RankProgramEntry(const std::string& name, RankProgram program);
  RankProgramEntry(const std::string& name,
                   std::function<void(const std::shared_ptr<World>&)> program);
};

// The same for a program that gets a communicator.
struct CommunicatorProgramEntry : RankProgramEntry {
  CommunicatorProgramEntry(
      const std::string& name,
      std::function<void(const std::shared_ptr<internal::Communicator>&)>
          program);
};

// Returns, in a rank, an argument of the test ("" if there is none).
std::string argument(const std::string& name);
// Returns, in a rank, the options to connect with. Timeouts are short unless
// the arguments "timeout_ms" and "heartbeat_ms" are given.
WorldOptions world_options();

// Sets, in a rank, the environment variables that a launcher would set.
void set_launch_environment();

// Throws std::runtime_error with the text `what` unless `holds`.
void check(bool holds, const std::string& what);

// The output of a rank, and how it has ended.
struct RankResult {
  Exit exit;
  bool ended = false;
  std::string out, err;
};

// Expects that all ranks have ended by themselves, with exit code 0.
void expect_all_ok(const std::vector<RankResult>& results);

// The running ranks of one program.
class Ranks {
 public:
  using Arguments = std::vector<std::pair<std::string, std::string>>;

  // Starts `size` ranks with the same arguments.
  Ranks(const std::string& program, int size, Arguments arguments = {});
  // Starts one rank for each entry, with its own arguments.
  Ranks(const std::string& program, const std::vector<Arguments>& arguments);
  ~Ranks();

  // Sends a signal to a rank.
  void signal(int rank, int number);
  // Blocks until `rank`, or every rank, has printed `line`. Returns false if
  // that takes more than a minute.
  bool wait_for_line(int rank, const std::string& line);
  bool wait_for_line(const std::string& line);

  // Blocks until all ranks have ended. Kills those that still run after
  // `limit`, with a sanitizer three times as long.
  std::vector<RankResult> wait(
      std::chrono::seconds limit = std::chrono::seconds(120));
  // The same, but does not wait for the ranks in `left_out`.
  std::vector<RankResult> wait_but(const std::vector<int>& left_out,
                                   std::chrono::seconds limit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Runs `size` ranks, and expects that all have ended by themselves, with exit
// code 0.
std::vector<RankResult> expect_ok(const std::string& program, int size,
                                  Ranks::Arguments arguments = {});

// Returns the running child processes of this process.
std::vector<std::string> children();

struct Listener {
  std::string address;  // hexadecimal, as in /proc/net/tcp
  int port;
};

// Returns the TCP addresses and ports where a process listens; none if the
// process has ended.
std::vector<Listener> listeners_of(const std::string& pid);

}  // namespace gpipe::testing
