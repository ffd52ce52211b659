// Messages between processes of one world arrive, and its store answers.
#include "gpipe/distributed/links/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/links/connect.h"
#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/frame.h"
#include "gpipe/distributed/links/hello.h"
#include "gpipe/distributed/links/peer_link.h"
#include "gpipe/distributed/links/shared_memory.h"
#include "gpipe/distributed/links/socket.h"
#include "gpipe/distributed/links/store_server.h"
#include "gpipe/distributed/links/testing/refusal_log.h"
#include "gpipe/processes/connections.h"

namespace gpipe::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// The meshes of all ranks, in one process.
class Meshes {
 public:
  explicit Meshes(
      int size,
      std::shared_ptr<const Credentials> credentials = with_secret(kSecret),
      bool shares_memory = true) {
    std::vector<std::future<std::unique_ptr<Mesh>>> futures;
    for (int rank = 0; rank < size; ++rank) {
      MeshOptions options;
      options.rank = rank;
      options.size = size;
      options.address = kAddress;
      options.credentials = credentials;
      options.refusals = log.refusals;
      options.timeout = seconds(30);
      options.shares_memory = shares_memory;
      options.tell = [this, rank](const std::string& text) {
        std::lock_guard<std::mutex> lock(mutex_);
        places_[rank] = text;
      };
      options.ask = [this](int of) {
        std::lock_guard<std::mutex> lock(mutex_);
        return places_[of];
      };
      futures.push_back(std::async(std::launch::async, [options] {
        return std::make_unique<Mesh>(options);
      }));
    }
    for (auto& each : futures) meshes.push_back(each.get());
  }

  PeerLink& link(int from, int to) { return meshes[from]->link(to); }

  // Returns what a rank has told, "" if nothing.
  std::string place(int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    return places_[rank];
  }

  Log log;

 private:
  std::mutex mutex_;
  std::map<int, std::string> places_;

 public:
  std::vector<std::unique_ptr<Mesh>> meshes;
};

using Bytes = std::vector<unsigned char>;

Bytes message(std::size_t size, int from, int tag) {
  Bytes block(1021);  // a prime, so that shifted data differs
  std::mt19937 random(static_cast<unsigned>(size * 31 + from * 7 + tag));
  for (auto& each : block) each = static_cast<unsigned char>(random());
  Bytes bytes(size);
  for (std::size_t at = 0; at < size; at += block.size()) {
    std::memcpy(bytes.data() + at, block.data(),
                std::min(block.size(), size - at));
  }
  return bytes;
}

// Returns how often this process has mapped the memory of a link.
int count_shared_memory() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("gpipe-link") != std::string::npos) ++count;
  }
  return count;
}

struct Kind {
  bool is_secured, shares_memory;
};

class MeshOfKind : public ::testing::TestWithParam<Kind> {};

TEST_P(MeshOfKind, MessagesArriveWhole) {
  const std::vector<std::size_t> sizes = {0,     1,      1000,    4095,
                                          4096,  16367,  16368,   16369,
                                          40000, 300000, 1048577, 3000000};
  Meshes all(3,
             GetParam().is_secured
                 ? with_secret(kSecret)
                 : std::make_shared<const Credentials>(Identity{}),
             GetParam().shares_memory);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      // All receives of a tag in order; tags in another order than the sends.
      std::vector<std::shared_ptr<Transfer>> transfers;
      std::vector<std::pair<std::unique_ptr<Bytes>, Bytes>> received;
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        for (int tag = 2; tag >= 0; --tag) {
          for (const std::size_t size : sizes) {
            auto to = std::make_unique<Bytes>(size, 7);
            transfers.push_back(
                all.link(rank, peer).receive(tag, to->data(), size, nullptr));
            received.emplace_back(std::move(to), message(size, peer, tag));
          }
        }
      }
      std::vector<std::unique_ptr<Bytes>> sent;
      for (int tag = 0; tag < 3; ++tag) {
        for (int peer = 0; peer < 3; ++peer) {
          if (peer == rank) continue;
          for (const std::size_t size : sizes) {
            sent.push_back(std::make_unique<Bytes>(message(size, rank, tag)));
            transfers.push_back(
                all.link(rank, peer)
                    .send(tag, sent.back()->data(), size, nullptr));
          }
        }
      }
      for (const auto& each : transfers) EXPECT_TRUE(each->wait(seconds(30)));
      for (const auto& [bytes, expected] : received) {
        EXPECT_EQ(*bytes, expected);
      }
    });
  }
  for (auto& each : ranks) each.join();
  EXPECT_EQ(all.log.text(), "");
  // Both ends of three links are in this process.
  EXPECT_EQ(count_shared_memory(), GetParam().shares_memory ? 6 : 0);
}

INSTANTIATE_TEST_SUITE_P(Links, MeshOfKind,
                         ::testing::Values(Kind{false, false},
                                           Kind{false, true}, Kind{true, false},
                                           Kind{true, true}));

TEST(MeshTest, HeldFramesLeaveTogetherInTheirOrder) {
  Meshes all(2);
  PeerLink &from = all.link(1, 0), &to = all.link(0, 1);
  Bytes first(100000, 1), second(10, 2), got_first(100000), got_second(10);
  const auto receive_first =
      to.receive(1, got_first.data(), got_first.size(), nullptr);
  const auto receive_second =
      to.receive(2, got_second.data(), got_second.size(), nullptr);
  from.hold();
  from.hold();
  const auto send_first = from.send(1, first.data(), first.size(), nullptr);
  const auto send_second = from.send(2, second.data(), second.size(), nullptr);
  from.release();
  EXPECT_THAT(text_of_error([&] { receive_second->wait(milliseconds(20)); }),
              HasSubstr("timed out after 20 ms"));
  from.release();
  EXPECT_TRUE(receive_second->wait(seconds(20)));
  EXPECT_TRUE(receive_first->is_over());  // it left before
  EXPECT_TRUE(receive_first->wait(seconds(20)));
  EXPECT_EQ(got_first, first);
  EXPECT_EQ(got_second, second);
}

TEST(MeshTest, MoreReceivesThanTheSharedMemoryHasNoticesFor) {
  constexpr std::size_t kCount = 3 * SharedMemory::kNotices;
  Meshes all(2);
  PeerLink &from = all.link(1, 0), &to = all.link(0, 1);
  std::vector<std::size_t> sent(kCount), got(kCount);
  std::vector<std::shared_ptr<Transfer>> transfers;
  for (std::size_t k = 0; k < kCount; ++k) {
    sent[k] = k;
    transfers.push_back(to.receive(0, &got[k], sizeof got[k], nullptr));
  }
  for (std::size_t k = 0; k < kCount; ++k) {
    transfers.push_back(from.send(0, &sent[k], sizeof sent[k], nullptr));
  }
  for (const auto& each : transfers) EXPECT_TRUE(each->wait(seconds(20)));
  EXPECT_EQ(got, sent);
}

// Sends before the receive is posted, at the same time, and after it: a sender
// that waits for the notice is woken.
TEST(MeshTest, SendersThatWaitAreToldOfAReceive) {
  Meshes all(2);
  std::vector<std::thread> ranks;
  for (const int rank : {0, 1}) {
    ranks.emplace_back([&all, rank] {
      PeerLink& link = all.link(rank, 1 - rank);
      std::mt19937 random(rank);
      const Bytes out = message(8192, rank, 0);
      Bytes in(out.size());
      for (int k = 0; k < 3000; ++k) {
        const auto pause = [&] {
          const auto end = Clock::now() + std::chrono::microseconds(
                                              random() % 4 * (random() % 30));
          while (Clock::now() < end) continue;
        };
        pause();
        const auto send = link.send(rank, out.data(), out.size(), nullptr);
        pause();
        const auto receive =
            link.receive(1 - rank, in.data(), in.size(), nullptr);
        ASSERT_TRUE(receive->wait(seconds(20)));
        ASSERT_TRUE(send->wait(seconds(20)));
        ASSERT_EQ(in, message(out.size(), 1 - rank, 0));
      }
    });
  }
  for (auto& each : ranks) each.join();
}

// Connects to rank 0 of `all` as rank 1, sends a frame, and returns the error
// of a receive on rank 0.
std::string error_after_frame(Meshes& all, uint32_t kind, uint64_t bytes) {
  const std::string place = all.place(0);
  const std::size_t space = place.find(' ');
  const uint64_t token = std::stoull(place.substr(place.rfind(' ')));
  const Credentials open{Identity{}};
  Socket socket = connect_to(kAddress, std::stoi(place.substr(space)), open,
                             Hello{1, 0, token}, Clock::now() + seconds(20));
  Bytes memory(10);
  const auto receive =
      all.link(0, 1).receive(0, memory.data(), memory.size(), nullptr);
  const Frame frame{kind, 0, bytes};
  std::size_t done = 0;
  EXPECT_EQ(socket.write(&frame, sizeof frame, done), Socket::Status::kDone);
  EXPECT_EQ(done, sizeof frame);
  return text_of_error([&] { receive->wait(seconds(20)); });
}

TEST(MeshTest, FramesThatCannotBeAreErrors) {
  const auto open = std::make_shared<const Credentials>(Identity{});
  const auto error = [&](uint32_t kind, uint64_t bytes) {
    Meshes all(2, open);
    return error_after_frame(all, kind, bytes);
  };
  // The other end has offered no memory.
  EXPECT_THAT(error(3, 10), HasSubstr("which has no such memory"));
  EXPECT_THAT(error(4, 1),
              HasSubstr("1 bytes of shared memory, of 0 that were there"));
  EXPECT_THAT(error(6, 0), HasSubstr("a frame of kind 6"));
  EXPECT_THAT(error(2, 11), HasSubstr("11 more bytes"));
}

TEST(MeshTest, StrangersAtAnOpenPortAreRefused) {
  Meshes all(2, std::make_shared<const Credentials>(Identity{}));
  const std::string place = all.place(0);
  const int port = std::stoi(place.substr(place.find(' ')));
  const Credentials open{Identity{}};
  const auto connect = [&](const Hello& hello) {
    connect_to(kAddress, port, open, hello, Clock::now() + milliseconds(50));
  };
  // A rank of another start, and one with a secret.
  EXPECT_NE(text_of_error([&] { connect({1, 0, 7}); }), "no exception");
  EXPECT_TRUE(all.log.has("rank 1 is of another start of this world"));
  EXPECT_NE(text_of_error([&] {
              connect_to(kAddress, port, *with_secret(kSecret), {1, 0, 0},
                         Clock::now() + milliseconds(50));
            }),
            "no exception");
  EXPECT_TRUE(all.log.has("it is not this version of gpipe"));
  Bytes bytes(10, 1), got(10);
  const auto send = all.link(1, 0).send(1, bytes.data(), 10, nullptr);
  EXPECT_TRUE(
      all.link(0, 1).receive(1, got.data(), 10, nullptr)->wait(seconds(20)));
  EXPECT_EQ(got, bytes);
}

TEST(MeshTest, AMessageOfAnotherLengthIsAnErrorOnBothSides) {
  Meshes all(2);
  Bytes bytes(10);
  const auto receive = all.link(0, 1).receive(1, bytes.data(), 9, nullptr);
  const auto send = all.link(1, 0).send(1, bytes.data(), 10, nullptr);
  EXPECT_THAT(text_of_error([&] { send->wait(seconds(20)); }),
              AllOf(HasSubstr("10 bytes"), HasSubstr("expects 9")));
  EXPECT_THAT(text_of_error([&] { receive->wait(seconds(20)); }),
              HasSubstr("Connection closed by peer 127.0.0.1:"));
  EXPECT_NE(text_of_error(
                [&] { all.link(0, 1).receive(1, bytes.data(), 9, nullptr); }),
            "no exception");
}

TEST(MeshTest, AbortsTransfersThatWait) {
  Meshes all(2);
  Bytes bytes(10, 1), later(10, 2), got(10, 0);
  // A message for an aborted receive is thrown away.
  const auto aborted = all.link(0, 1).receive(1, bytes.data(), 10, nullptr);
  std::thread aborting([&] { aborted->abort(); });
  EXPECT_FALSE(aborted->wait(std::nullopt));
  aborting.join();
  const auto receive = all.link(0, 1).receive(1, got.data(), 10, nullptr);
  const auto first = all.link(1, 0).send(1, later.data(), 10, nullptr);
  const auto second = all.link(1, 0).send(1, later.data(), 10, nullptr);
  EXPECT_TRUE(first->wait(seconds(20)));
  EXPECT_TRUE(second->wait(seconds(20)));
  EXPECT_TRUE(receive->wait(seconds(20)));
  EXPECT_EQ(bytes, Bytes(10, 1));
  EXPECT_EQ(got, later);
  // A send that has not begun.
  const auto unsent = all.link(0, 1).send(5, bytes.data(), 10, nullptr);
  unsent->abort();
  EXPECT_FALSE(unsent->wait(std::nullopt));
  EXPECT_THAT(text_of_error([&] {
                all.link(0, 1)
                    .receive(9, got.data(), 10, nullptr)
                    ->wait(milliseconds(1));
              }),
              HasSubstr("timed out after 1 ms"));
}

TEST(MeshTest, ARankThatIsGoneEndsAllWaits) {
  Meshes all(3);
  Bytes bytes(10);
  all.link(1, 0).send(1, bytes.data(), 10, nullptr);
  EXPECT_TRUE(
      all.link(0, 1).receive(1, bytes.data(), 10, nullptr)->wait(seconds(20)));
  const auto gone = all.link(0, 1).receive(1, bytes.data(), 10, nullptr);
  all.meshes[1].reset();
  EXPECT_THAT(text_of_error([&] { gone->wait(seconds(20)); }),
              HasSubstr("Connection closed by peer"));
  // The others go on.
  const auto receive = all.link(0, 2).receive(1, bytes.data(), 10, nullptr);
  const auto send = all.link(2, 0).send(1, bytes.data(), 10, nullptr);
  EXPECT_TRUE(receive->wait(seconds(20)));
  EXPECT_TRUE(send->wait(seconds(20)));
}

// Options of rank `rank` of three, alone. `place`: what smaller ranks tell.
MeshOptions options_of(int rank, const Log& log, milliseconds timeout,
                       const std::string& place = "") {
  MeshOptions options;
  options.rank = rank;
  options.size = 3;
  options.address = kAddress;
  options.credentials = with_secret(kSecret);
  options.refusals = log.refusals;
  options.timeout = timeout;
  options.tell = [](const std::string&) {};
  options.ask = [place](int) { return place; };
  return options;
}

// Starts a receive and returns the text of the error of its wait.
std::string error_of_receive(Mesh& mesh, int from) {
  char byte = 0;
  return text_of_error([&] {
    mesh.link(from).receive(1, &byte, 1, nullptr)->wait(seconds(20));
  });
}

TEST(MeshTest, NamesARankThatDoesNotConnect) {
  Log log;
  Mesh mesh(options_of(0, log, milliseconds(50)));
  EXPECT_THAT(error_of_receive(mesh, 2),
              HasSubstr("no connection to 127.0.0.1 from rank 2"));
  EXPECT_THAT(error_of_receive(mesh, 1),
              HasSubstr("no connection to 127.0.0.1 from rank 1"));
  EXPECT_THAT(error_of_receive(mesh, 0), HasSubstr("from rank 0 to rank 0"));
  EXPECT_THAT(error_of_receive(mesh, 3), HasSubstr("from rank 0 to rank 3"));
}

TEST(MeshTest, NamesARankThatDoesNotAnswer) {
  Log log;
  Mesh silent(options_of(2, log, milliseconds(50)));
  EXPECT_THAT(error_of_receive(silent, 1),
              HasSubstr("rank 1 has not told where it listens"));
  const Descriptor listening = listen_on(kAddress, 0);  // accepts nothing
  const std::string port = std::to_string(port_of(listening));
  Mesh frozen(options_of(2, log, milliseconds(50), "127.0.0.1 " + port + " 7"));
  EXPECT_THAT(error_of_receive(frozen, 1),
              AllOf(HasSubstr("rank 1: no connection to 127.0.0.1:" + port),
                    HasSubstr("it does not answer")));
  Mesh dead(options_of(2, log, milliseconds(50), "127.0.0.1 1 7"));
  EXPECT_THAT(error_of_receive(dead, 1),
              HasSubstr("rank 1: no connection to 127.0.0.1:1: Connection "
                        "refused"));
}

TEST(MeshTest, TransfersThatWaitForAConnectionCanBeAborted) {
  Log log;
  const Descriptor listening = listen_on(kAddress, 0);  // accepts nothing
  Mesh mesh(
      options_of(1, log, seconds(600),
                 "127.0.0.1 " + std::to_string(port_of(listening)) + " 7"));
  char byte = 0;
  for (const int peer : {0, 2}) {  // connects there; is connected from there
    const auto receive = mesh.link(peer).receive(1, &byte, 1, nullptr);
    const auto send = mesh.link(peer).send(1, &byte, 1, nullptr);
    std::thread aborting([&] {
      receive->abort();
      send->abort();
    });
    EXPECT_FALSE(receive->wait(std::nullopt));
    EXPECT_FALSE(send->wait(seconds(600)));
    aborting.join();
    EXPECT_THAT(
        text_of_error([&] {
          mesh.link(peer).receive(1, &byte, 1, nullptr)->wait(milliseconds(1));
        }),
        HasSubstr("timed out after 1 ms"));
  }
}

TEST(MeshTest, ConnectsThoseThatExchangeSomething) {
  Meshes all(5);
  EXPECT_EQ(count_connections(), 0);
  Bytes bytes(10, 1), got(10);
  const auto exchange = [&](int from, int to) {
    const auto send = all.link(from, to).send(1, bytes.data(), 10, nullptr);
    const auto receive = all.link(to, from).receive(1, got.data(), 10, nullptr);
    EXPECT_TRUE(send->wait(seconds(20)));
    EXPECT_TRUE(receive->wait(seconds(20)));
    EXPECT_EQ(got, bytes);
  };
  // Both ends of each connection are in this process.
  exchange(0, 1);
  EXPECT_EQ(count_connections(), 2);
  exchange(1, 0);
  EXPECT_EQ(count_connections(), 2);
  exchange(4, 2);
  EXPECT_EQ(count_connections(), 4);
  // Further links can be made later, but not after this.
  exchange(3, 1);
  EXPECT_EQ(count_connections(), 6);
  all.meshes[2]->stop_connecting();
  exchange(2, 4);
  EXPECT_THAT(text_of_error([&] { all.link(2, 1); }),
              HasSubstr("no connection to rank 1"));
  EXPECT_THAT(text_of_error([&] { all.link(2, 3); }),
              HasSubstr("rank 3 can no longer connect"));
  EXPECT_EQ(all.log.text(), "");
}

TEST(MeshTest, ARankIsConnectedBeforeTheOtherOneUsesTheLink) {
  Meshes all(2);
  Bytes bytes(10, 1), got(10);
  const auto send = all.link(1, 0).send(1, bytes.data(), 10, nullptr);
  while (count_connections() < 2) std::this_thread::sleep_for(milliseconds(1));
  const auto receive = all.link(0, 1).receive(1, got.data(), 10, nullptr);
  EXPECT_TRUE(receive->wait(seconds(20)));
  EXPECT_TRUE(send->wait(seconds(20)));
  EXPECT_EQ(got, bytes);
}

TEST(MeshTest, ClosesItsPortWhenNoMoreCanConnect) {
  Meshes all(3);
  const auto can_connect = [&](int rank) {
    const std::string place = all.place(rank);
    if (place.empty()) return false;  // it has never listened
    const auto error = text_of_error([&] {
      connect_to(kAddress, std::stoi(place.substr(place.find(' '))),
                 *with_secret("another secret, also long enough"),
                 Hello{9, 0, 0}, Clock::now());
    });
    return error.find("Connection refused") == std::string::npos;
  };
  EXPECT_TRUE(can_connect(0));
  EXPECT_TRUE(can_connect(1));
  EXPECT_FALSE(can_connect(2));  // the last one
  char byte = 0;
  all.link(1, 0).send(1, &byte, 1, nullptr);
  EXPECT_TRUE(all.link(0, 1).receive(1, &byte, 1, nullptr)->wait(seconds(20)));
  EXPECT_TRUE(can_connect(0));
  all.link(2, 0);
  all.link(2, 1);
  while (can_connect(0) || can_connect(1)) {
    std::this_thread::sleep_for(milliseconds(1));
  }
}

TEST(StoreTest, AnswersAsCTenDsStoresDo) {
  using Kind = StoreRequest::Kind;
  const auto credentials = with_secret(kSecret);
  Log log;
  Descriptor listening = listen_on(kAddress, 0);
  const int port = port_of(listening);
  StoreServer server(std::move(listening), credentials, log.refusals);
  StoreClient client(connect_to(kAddress, port, *credentials, Hello{1, 0, 0},
                                Clock::now() + seconds(20)),
                     credentials);
  server.stop_listening();
  EXPECT_THAT(
      text_of_error([&] {
        connect_to(kAddress, port, *credentials, Hello{2, 0, 0}, Clock::now());
      }),
      HasSubstr("Connection refused"));
  EXPECT_FALSE(client.call({Kind::kGet, "a", "", "", 0}).found);
  client.call({Kind::kSet, "a", std::string(100000, 'x'), "", 0});
  EXPECT_EQ(server.call({Kind::kGet, "a", "", "", 0}),
            (StoreReply{true, std::string(100000, 'x'), 0}));
  EXPECT_EQ(client.call({Kind::kAdd, "n", "", "", 5}).number, 5);
  EXPECT_EQ(server.call({Kind::kAdd, "n", "", "", -2}).number, 3);
  EXPECT_EQ(client.call({Kind::kCount, "", "", "", 0}).number, 2);
  const auto compare = [&](const char* expected, const char* desired) {
    return client.call({Kind::kCompareSet, "c", expected, desired, 0}).value;
  };
  EXPECT_EQ(compare("other", "x"), "other");  // the key is absent
  EXPECT_EQ(compare("", "first"), "first");
  EXPECT_EQ(compare("", "second"), "first");
  EXPECT_EQ(compare("first", "third"), "third");
  EXPECT_TRUE(client.call({Kind::kDelete, "c", "", "", 0}).found);
  EXPECT_FALSE(client.call({Kind::kDelete, "c", "", "", 0}).found);
}

}  // namespace
}  // namespace gpipe::internal
