#include "gpipe/distributed/testing/ranks.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>

#include "gpipe/distributed/testing/rank_server.h"
#include "gpipe/distributed/world/communicator.h"

// Present only with sanitizers.
extern "C" __attribute__((weak)) void __sanitizer_print_stack_trace();

namespace gpipe::testing {
namespace {

constexpr char kProgram[] = "GPIPE_TEST_RANK_PROGRAM";
constexpr char kPrefix[] = "GPIPE_TEST_ARGUMENT_";

std::map<std::string, RankProgram>& programs() {
  static auto* const programs = new std::map<std::string, RankProgram>();
  return *programs;
}

std::chrono::milliseconds milliseconds(const std::string& name, int otherwise) {
  const std::string text = argument(name);
  return std::chrono::milliseconds(text.empty() ? otherwise : std::stoll(text));
}

int run(const std::string& name) {
  try {
    return programs().at(name)();
  } catch (const c10::Error& error) {
    std::cerr << "error: " << error.what_without_backtrace() << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
  }
  return 1;
}

// Ends the process before LibTorch's destructors, which take its operators
// apart for 0.1 s. Registered before all destructors of the executable, which
// contains gpipe, so that it runs after them.
__attribute__((constructor(101))) void exit_early() {
  ::on_exit(
      [](int code, void*) {
        // A sanitizer reports after the last destructor.
        if (__sanitizer_print_stack_trace) return;
        std::cout.flush();
        std::fflush(nullptr);
        ::_exit(code);
      },
      nullptr);
}

}  // namespace

RankProgramEntry::RankProgramEntry(const std::string& name,
                                   RankProgram program) {
  if (programs().emplace(name, std::move(program)).second) return;
  std::cerr << "two rank programs of a test have the name " << name << "\n";
  std::abort();
}

RankProgramEntry::RankProgramEntry(
    const std::string& name,
    std::function<void(const std::shared_ptr<World>&)> program)
    : RankProgramEntry(name, [program = std::move(program)] {
        const auto world = World::connect(world_options());
        at::set_num_threads(1);
        program(world);
        return 0;
      }) {}

CommunicatorProgramEntry::CommunicatorProgramEntry(
    const std::string& name,
    std::function<void(const std::shared_ptr<internal::Communicator>&)> program)
    : RankProgramEntry(name, [program = std::move(program)] {
        const auto world = internal::Communicator::connect(world_options());
        at::set_num_threads(1);
        program(world);
        return 0;
      }) {}

std::string argument(const std::string& name) {
  const char* const value = std::getenv((kPrefix + name).c_str());
  return value ? value : "";
}

WorldOptions world_options() {
  WorldOptions options = WorldOptions::from_environment();
  options.timeout = milliseconds("timeout_ms", 30000);
  options.heartbeat_timeout = milliseconds("heartbeat_ms", 10000);
  const std::string backend = argument("backend");
  if (!backend.empty()) options.backend = backend;
  return options;
}

void set_launch_environment() {
  const WorldOptions world = world_options();
  const std::pair<const char*, std::string> variables[] = {
      {"RANK", std::to_string(world.rank)},
      {"WORLD_SIZE", std::to_string(world.size)},
      {"LOCAL_RANK", std::to_string(world.local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(world.size)},
      {"MASTER_ADDR", world.address},
      {"MASTER_PORT", std::to_string(world.port)}};
  for (const auto& [name, value] : variables) {
    ::setenv(name, value.c_str(), /*overwrite=*/1);
  }
}

void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

void expect_all_ok(const std::vector<RankResult>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_TRUE(results[rank].ended) << "rank " << rank;
    EXPECT_TRUE(results[rank].exit.ok())
        << "rank " << rank << ": " << to_string(results[rank].exit) << "\n"
        << results[rank].out << results[rank].err;
  }
}

struct Ranks::State {
  std::mutex mutex;
  std::condition_variable written;
  std::vector<RankResult> results;
  // Without it, a rank of another world at the same time could get the port
  // before rank 0 listens.
  const ReservedPort reserved;
  std::unique_ptr<Processes> processes;
};

Ranks::Ranks(const std::string& program, int size, Arguments arguments)
    : Ranks(program, std::vector<Arguments>(size, std::move(arguments))) {}

Ranks::Ranks(const std::string& program,
             const std::vector<Arguments>& arguments)
    : state_(std::make_unique<State>()) {
  const std::string port = std::to_string(state_->reserved.port());
  const std::string size = std::to_string(arguments.size());
  std::vector<Command> commands;
  for (std::size_t rank = 0; rank < arguments.size(); ++rank) {
    Command& command = commands.emplace_back();
    command.program = "/proc/self/exe";
    // CUDA's libraries need not work in a fork of a process that has loaded
    // them.
    if (!at::hasCUDA()) command.spawn = fork_rank;
    command.environment = {
        {kProgram, program},        {"RANK", std::to_string(rank)},
        {"WORLD_SIZE", size},       {"LOCAL_RANK", std::to_string(rank)},
        {"LOCAL_WORLD_SIZE", size}, {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", port},      {"OMP_NUM_THREADS", "1"}};
    for (const auto& [name, value] : arguments[rank]) {
      // The name of a variable, or of an argument.
      const bool variable = name == "WORLD_SIZE" || name == "MASTER_PORT" ||
                            name == "RANK" || name == "MASTER_ADDR";
      if (!variable) {
        command.environment.emplace_back(kPrefix + name, value);
        continue;
      }
      for (auto& [known, text] : command.environment) {
        if (known == name) text = value;
      }
    }
  }
  state_->results.resize(commands.size());
  State* const state = state_.get();
  state_->processes = std::make_unique<Processes>(
      commands,
      [state](int rank, Stream stream, std::string_view line) {
        {
          std::lock_guard<std::mutex> lock(state->mutex);
          RankResult& result = state->results[rank];
          auto& text = stream == Stream::kStdout ? result.out : result.err;
          text.append(line).append("\n");
        }
        state->written.notify_all();
      },
      /*grace_seconds=*/0.1);
}

Ranks::~Ranks() = default;

void Ranks::signal(int rank, int number) {
  state_->processes->signal(rank, number);
}

bool Ranks::wait_for_line(int rank, const std::string& line) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return state_->written.wait_for(lock, std::chrono::minutes(1), [&] {
    return ("\n" + state_->results[rank].out).find("\n" + line + "\n") !=
           std::string::npos;
  });
}

bool Ranks::wait_for_line(const std::string& line) {
  for (int rank = 0; rank < state_->processes->size(); ++rank) {
    if (!wait_for_line(rank, line)) return false;
  }
  return true;
}

std::vector<RankResult> Ranks::wait(std::chrono::seconds limit) {
  return wait_but({}, limit);
}

std::vector<RankResult> Ranks::wait_but(const std::vector<int>& left_out,
                                        std::chrono::seconds limit) {
  if (__sanitizer_print_stack_trace) limit *= 3;
  const auto deadline = Processes::Clock::now() + limit;
  const auto all_ended = [&] {
    for (int rank = 0; rank < state_->processes->size(); ++rank) {
      if (std::ranges::find(left_out, rank) == left_out.end() &&
          !state_->processes->exit_of(rank)) {
        return false;
      }
    }
    return true;
  };
  while (!all_ended() && Processes::Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::vector<std::optional<Exit>> exits;
  for (int rank = 0; rank < state_->processes->size(); ++rank) {
    exits.push_back(state_->processes->exit_of(rank));
  }
  // Delivers the last lines and kills ranks that still run.
  state_->processes.reset();
  for (std::size_t rank = 0; rank < exits.size(); ++rank) {
    RankResult& result = state_->results[rank];
    result.ended = exits[rank].has_value();
    if (exits[rank]) result.exit = *exits[rank];
  }
  return state_->results;
}

std::vector<RankResult> expect_ok(const std::string& program, int size,
                                  Ranks::Arguments arguments) {
  auto results = Ranks(program, size, std::move(arguments)).wait();
  expect_all_ok(results);
  return results;
}

std::vector<std::string> children() {
  std::vector<std::string> pids;
  for (const auto& each : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = each.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file("/proc/" + pid + "/stat");
    std::string stat;
    std::getline(file, stat);
    // The state and the parent follow the name, which may contain anything.
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));
    std::string state;
    pid_t parent = 0;
    fields >> state >> parent;
    if (parent == ::getpid()) pids.push_back(pid);
  }
  return pids;
}

std::vector<Listener> listeners_of(const std::string& pid) {
  std::vector<std::string> inodes;
  std::error_code error;
  for (const auto& each :
       std::filesystem::directory_iterator("/proc/" + pid + "/fd", error)) {
    const std::string link =
        std::filesystem::read_symlink(each.path(), error).string();
    if (link.rfind("socket:[", 0) == 0) {
      inodes.push_back(link.substr(8, link.size() - 9));
    }
  }
  std::vector<Listener> listeners;
  for (const std::string table : {"tcp", "tcp6"}) {
    std::ifstream lines("/proc/" + pid + "/net/" + table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::vector<std::string> field(10);
      for (std::string& each : field) fields >> each;
      const bool listens = field[3] == "0A";
      const bool own = std::ranges::find(inodes, field[9]) != inodes.end();
      if (!listens || !own) continue;
      const std::size_t colon = field[1].find(':');
      listeners.push_back({field[1].substr(0, colon),
                           std::stoi(field[1].substr(colon + 1), nullptr, 16)});
    }
  }
  return listeners;
}

}  // namespace gpipe::testing

int main(int argc, char** argv) {
  gpipe::testing::serve_ranks();
  if (const char* const program = std::getenv(gpipe::testing::kProgram)) {
    return gpipe::testing::run(program);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
