// A rank that is missing, dies, stops, leaves or is too slow ends the step on
// all ranks. A rank that is only slow does not, and neither do strangers at the
// ports.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/base/processes.h"
#include "gpipe/distributed/testing/faulty_ranks.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world.h"
#include "gpipe/testing/process.h"

// LibTorch's store leaks the buffer of its last read when a connection ends.
// This happens when strangers connect and leave while the rank with the store
// goes on.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:c10d::detail::UvTcpSocket::alloc_buffer";
}

namespace gpipe::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

bool is_running(const std::string& pid) {
  return ::kill(std::stoi(pid), 0) == 0 || errno != ESRCH;
}

// Returns the seeds of expect_noticed(). The first four have 3 and 4 ranks and,
// for each signal, the first, a middle and the last rank at fault.
std::vector<unsigned> fault_seeds() {
  std::vector<unsigned> seeds{1, 2,  10, 18, 3,  4,  5,  6,  7,  8,
                              9, 11, 12, 13, 14, 15, 16, 17, 19, 20};
  seeds.resize(testing::rounds(4, 20));
  return seeds;
}

// Sends a signal to a rank at a random point in time of a step. Expects the
// other ranks to report it within `report` and to end within 5 s.
void expect_noticed(int number, const std::string& fault, milliseconds report,
                    const Arguments& arguments) {
  milliseconds longest{0}, longest_out{0};
  const std::vector<unsigned> seeds = fault_seeds();
  for (const unsigned seed : seeds) {
    std::mt19937 random(seed);
    const int ranks = 3 + static_cast<int>(random() % 2);
    const int at_fault = static_cast<int>(random() % ranks);
    const auto delay = std::chrono::microseconds(random() % 100000);
    std::ostringstream round;
    round << "seed " << seed << ": rank " << at_fault << " of " << ranks
          << " after " << delay.count() << " us";
    SCOPED_TRACE(round.str());
    Ranks running("train", ranks, arguments);
    ASSERT_TRUE(running.wait_for_line("running: yes"));
    std::this_thread::sleep_for(delay);  // the test needs this delay
    const int64_t begin = now_ms();
    running.signal(at_fault, number);
    const auto results = running.wait_but({at_fault}, seconds(20));
    const milliseconds out(now_ms() - begin);
    EXPECT_LE(out, seconds(5));
    longest_out = std::max(longest_out, out);
    for (int rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(rank_text(rank));
      EXPECT_FALSE(is_running(said(results[rank]).at("pid")));
      if (rank == at_fault) continue;
      auto words = expect_peer_error(results[rank], fault, at_fault);
      EXPECT_EQ(words["grads"], "as before");
      if (words.count("caught") == 0) continue;
      const milliseconds noticed(std::stoll(words["caught"]) - begin);
      EXPECT_LE(noticed, report);
      longest = std::max(longest, noticed);
    }
  }
  std::cout << seeds.size() << " seeds: the error came after at most "
            << longest.count() << " ms, and the ranks were out after at most "
            << longest_out.count() << " ms" << std::endl;
}

TEST(Fault, AKilledRankIsNoticedWithinASecond) {
  expect_noticed(SIGKILL, "has died", seconds(1), {});
}

TEST(Fault, AStoppedRankIsNoticedWithinTheHeartbeatTimeoutAndASecond) {
  expect_noticed(SIGSTOP, "is frozen", seconds(2), {{"heartbeat_ms", "1000"}});
}

TEST(Fault, ATimeoutOfForeverIsNoneAtAll) {
  const std::string forever = std::to_string(milliseconds::max().count());
  Ranks running("train", 2,
                {{"timeout_ms", forever}, {"heartbeat_ms", forever}});
  ASSERT_TRUE(running.wait_for_line("running: yes"));
  running.signal(1, SIGKILL);
  const auto results = running.wait_but({1}, seconds(20));
  expect_peer_error(results[0], "has died", 1);
}

const RankProgramEntry kIdle("idle", [](auto& /*world*/) {
  const std::clock_t begin = std::clock();
  std::this_thread::sleep_for(seconds(1));  // the test needs this delay
  const auto ticks = 1000 * (std::clock() - begin) / CLOCKS_PER_SEC;
  say("busy", std::to_string(ticks));  // ms of all threads
});

TEST(Fault, AShortHeartbeatTimeoutDoesNotKeepACoreBusy) {
  const auto results = Ranks("idle", 1, {{"heartbeat_ms", "1"}}).wait();
  EXPECT_LE(std::stoi(said(results[0])["busy"]), 150);
}

TEST(Fault, ARankThatIsSlowOrPausesIsNoFailure) {
  const Arguments steps{{"steps", "40"}, {"heartbeat_ms", "1000"}};

  // A layer takes longer than the heartbeat timeout.
  std::vector<Arguments> slow(3, steps);
  slow[1] = join(
      steps,
      {{"place", "forward"}, {"deed", "sleep"}, {"ms", "1600"}, {"at", "3"}});
  Ranks slow_ranks("train", slow);
  const auto bits = bits_of(Ranks("train", 3, steps).wait());
  EXPECT_EQ(bits_of(slow_ranks.wait()), bits);

  for (const int rank : {0, 2}) {
    Ranks running("train", 3, steps);
    ASSERT_TRUE(running.wait_for_line(rank, "running: yes"));
    running.signal(rank, SIGSTOP);
    std::this_thread::sleep_for(milliseconds(500));  // half of the timeout
    running.signal(rank, SIGCONT);
    EXPECT_EQ(bits_of(running.wait()), bits);
  }
}

// Returns what the ranks say when rank `at_fault` is too slow for one of them.
std::vector<Words> expect_too_slow(const std::vector<Arguments>& arguments,
                                   int at_fault, const std::string& what) {
  std::vector<Words> all;
  for (const RankResult& each : Ranks("train", arguments).wait(seconds(30))) {
    SCOPED_TRACE(rank_text(static_cast<int>(all.size())));
    all.push_back(
        expect_peer_error(each, "has not answered in time", at_fault));
    EXPECT_EQ(all.back()["what"], what);
    EXPECT_EQ(all.back()["grads"], "as before");
  }
  return all;
}

TEST(Fault, ARankThatIsTooSlowIsNamed) {
  // All forwards come first, so rank 1 has all inputs and waits for no rank.
  std::vector<Arguments> arguments(
      2, {{"timeout_ms", "1200"}, {"schedule", "other"}});
  arguments[1] = join(
      arguments[1],
      {{"place", "forward"}, {"deed", "sleep"}, {"ms", "2400"}, {"at", "3"}});
  for (Words& words : expect_too_slow(
           arguments, 1,
           "nothing came for 1200 ms; raise WorldOptions::timeout if that may "
           "take longer")) {
    EXPECT_EQ(words["action"],
              "waiting for the gradient of stage 0's output for micro-batch 3 "
              "of step 4, from stage 1");
  }
}

TEST(Fault, ARankThatWaitsForTheOneThatIsTooSlowIsNotBlamed) {
  // Rank 0 has the shortest timeout and so gives up first. It waits for rank 1,
  // which waits for rank 2.
  std::vector<Arguments> arguments(3, {{"timeout_ms", "20000"}});
  arguments[0] = {{"timeout_ms", "1500"}};
  arguments[2] = join(
      arguments[2],
      {{"place", "forward"}, {"deed", "sleep"}, {"ms", "3000"}, {"at", "3"}});
  for (Words& words : expect_too_slow(
           arguments, 2,
           "nothing came for 1500 ms from rank 1, which waits for rank 2; "
           "raise WorldOptions::timeout if that may take longer")) {
    EXPECT_EQ(words["reporter"], "0");
  }
}

TEST(Fault, ARankThatHasLeftIsNamed) {
  std::vector<Arguments> arguments(3);
  arguments[1] = {{"steps", "3"}};
  const auto results = Ranks("train", arguments).wait(seconds(30));
  EXPECT_TRUE(results[1].exit.ok()) << to_string(results[1].exit);
  for (const int rank : {0, 2}) {
    SCOPED_TRACE(rank_text(rank));
    auto words = expect_peer_error(results[rank], "has left", 1);
    EXPECT_EQ(words["grads"], "as before");
  }
}

TEST(Fault, AMissingRankIsNamedByAll) {
  const auto results =
      Ranks("train", 3, {{"WORLD_SIZE", "5"}, {"timeout_ms", "3000"}})
          .wait(seconds(30));
  for (const RankResult& each : results) {
    auto words = expect_peer_error(each, "has not answered in time", 3);
    EXPECT_THAT(words["what"], HasSubstr("3 of 5 ranks came to 127.0.0.1:"));
    EXPECT_THAT(words["what"], HasSubstr(" in 3000 ms; missing: 3, 4"));
  }
}

// A socket on its own port. It accepts connections, sends `answer`, and closes
// them if `hangs_up`.
class Stranger {
 public:
  explicit Stranger(std::string answer, bool hangs_up = false)
      : answer_(std::move(answer)), hangs_up_(hangs_up) {
    EXPECT_EQ(::listen(reserved_.socket(), 16), 0);
    accepter_ = std::thread([this] {
      std::vector<int> taken;
      while (true) {
        const int one =
            ::accept4(reserved_.socket(), nullptr, nullptr, SOCK_CLOEXEC);
        if (one < 0) break;
        ::send(one, answer_.data(), answer_.size(), MSG_NOSIGNAL);
        if (hangs_up_) {
          ::close(one);
        } else {
          taken.push_back(one);
        }
      }
      for (const int each : taken) ::close(each);
    });
  }
  ~Stranger() {
    ::shutdown(reserved_.socket(), SHUT_RDWR);
    accepter_.join();
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  std::string port() const { return std::to_string(reserved_.port()); }

 private:
  const std::string answer_;
  const bool hangs_up_;
  const ReservedPort reserved_;
  std::thread accepter_;
};

std::string random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes;
  while (bytes.size() < count) bytes.push_back(static_cast<char>(random()));
  return bytes;
}

TEST(Fault, APortThatIsInUseIsNamed) {
  for (const std::string& answer :
       {std::string(), random_bytes(4096, 1), random_bytes(100000, 2)}) {
    SCOPED_TRACE(std::to_string(answer.size()) + " bytes of garbage");
    const Stranger stranger(answer);
    // Rank 0 must end long before its timeout; the others wait for theirs.
    std::vector<Arguments> arguments(
        3, {{"MASTER_PORT", stranger.port()}, {"timeout_ms", "1500"}});
    arguments[0] = {{"MASTER_PORT", stranger.port()}, {"timeout_ms", "20000"}};
    const auto results = Ranks("train", arguments).wait(seconds(30));
    for (int rank = 0; rank < 3; ++rank) {
      SCOPED_TRACE(rank_text(rank));
      auto words = said(results[rank]);
      EXPECT_THAT(words["text"], HasSubstr("127.0.0.1:" + stranger.port()));
      if (rank == 0) {
        expect_failed_in_order(results[rank]);
        EXPECT_EQ(words["type"], "DistNetworkError");
        EXPECT_THAT(words["text"], HasSubstr("Address already in use"));
        EXPECT_THAT(words["text"], HasSubstr("MASTER_PORT"));
        EXPECT_LE(results[rank].exit.seconds, 3);
      } else {
        expect_peer_error(results[rank], "has not answered in time", 0);
      }
    }
  }
}

TEST(Fault, AStoreThatHangsUpIsNamed) {
  const Stranger stranger("", /*hangs_up=*/true);
  const auto results =
      Ranks("train", {Arguments{{"RANK", "1"},
                                {"WORLD_SIZE", "2"},
                                {"MASTER_PORT", stranger.port()},
                                {"timeout_ms", "1000"}}})
          .wait(seconds(30));
  auto words = expect_peer_error(results[0], "has not answered in time", 0);
  // LibTorch tries repeatedly, and may give up a little after gpipe does.
  const std::string place = "the store at 127.0.0.1:" + stranger.port();
  EXPECT_THAT(words["what"], AnyOf(HasSubstr("no connection to " + place),
                                   HasSubstr("no answer from " + place)));
}

// Sends `bytes` to a port and returns the open connection.
int send_to_port(int port, const std::string& bytes) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(
      ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address),
      0);
  ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return socket;
}

TEST(Fault, StrangersAtThePortsOfTheLoopbackDoNotDisturb) {
  const Arguments steps{{"steps", "100"}};
  const auto bits = bits_of(Ranks("train", 3, steps).wait());
  Ranks running("train", 3, steps);
  std::vector<int> sockets;
  ASSERT_TRUE(running.wait_for_line("running: yes"));
  int found = 0;
  for (const std::string& pid : children()) {
    for (const auto& [address, port] : listeners_of(pid)) {
      ++found;
      // 127.0.0.1, so other machines cannot connect.
      EXPECT_EQ(address, "0100007F");
      for (const std::size_t count : {0, 3, 8, 24, 5000}) {
        sockets.push_back(
            send_to_port(port, random_bytes(count, port + count)));
        ::close(send_to_port(port, random_bytes(count, port)));
      }
    }
  }
  EXPECT_GE(found, 1);  // the store; other ports are closed as soon as possible
  EXPECT_EQ(bits_of(running.wait()), bits);
  for (const int each : sockets) ::close(each);
}

}  // namespace
}  // namespace gpipe::testing
