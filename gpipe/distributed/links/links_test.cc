// Only processes of the same world connect, and messages between them arrive.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
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

#include "gpipe/distributed/links/acceptor.h"
#include "gpipe/distributed/links/connect.h"
#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/link_error.h"
#include "gpipe/distributed/links/mesh.h"
#include "gpipe/distributed/links/peer_link.h"
#include "gpipe/distributed/links/refusals.h"
#include "gpipe/distributed/links/store_server.h"
#include "gpipe/distributed/links/testing/certificates.h"
#include "gpipe/distributed/links/testing/strangers.h"

namespace gpipe::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using testing::Authority;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr char kAddress[] = "127.0.0.1";
constexpr char kSecret[] = "a secret that is long enough";

// As World::connect() does: a closed connection is an error.
[[maybe_unused]] const auto kHandler = std::signal(SIGPIPE, SIG_IGN);

std::shared_ptr<const Credentials> with_secret(const std::string& secret) {
  return std::make_shared<Credentials>(Identity{secret, "", "", ""});
}

// Returns the text of the exception that `part` throws.
template <typename Part>
std::string text_of_error(Part part) {
  try {
    part();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no exception";
}

// The refusals of an acceptor.
struct Log {
  std::string text() {
    std::lock_guard<std::mutex> lock(mutex);
    std::string all;
    for (const std::string& line : lines) all += line + "\n";
    return all;
  }
  // Returns whether a line or the last refusal has `part`; waits for it.
  bool has(const std::string& part) {
    const auto deadline = Clock::now() + seconds(20);
    while ((text() + refusals->summary()).find(part) == std::string::npos) {
      if (Clock::now() > deadline) {
        ADD_FAILURE() << "only: " << text() << refusals->summary();
        return false;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    return true;
  }

  std::mutex mutex;
  std::vector<std::string> lines;
  const std::shared_ptr<Refusals> refusals =
      std::make_shared<Refusals>([this](const std::string& line) {
        std::lock_guard<std::mutex> lock(mutex);
        lines.push_back(line);
      });
};

// The acceptor of rank 0, which keeps the connections that it has accepted.
struct Listening {
  explicit Listening(std::shared_ptr<const Credentials> credentials,
                     uint64_t token = 0)
      : Listening(listen_on(kAddress, 0), std::move(credentials), token) {}
  Listening(Descriptor listening,
            std::shared_ptr<const Credentials> credentials, uint64_t token)
      : port(port_of(listening)),
        acceptor(
            std::move(listening), std::move(credentials), Hello{0, -1, token},
            [this](TlsSocket& socket, const Hello&) {
              std::lock_guard<std::mutex> lock(mutex);
              sockets.push_back(std::move(socket));
              return std::string();
            },
            log.refusals) {}

  std::size_t accepted() {
    std::lock_guard<std::mutex> lock(mutex);
    return sockets.size();
  }
  TlsSocket connect(const Credentials& credentials, Hello hello = {1, 0, 0}) {
    return connect_to(kAddress, port, credentials, hello,
                      Clock::now() + seconds(20));
  }

  Log log;
  const int port;
  std::mutex mutex;
  std::vector<TlsSocket> sockets;
  Acceptor acceptor;
};

TEST(AcceptorTest, AcceptsTheSecretOnly) {
  const auto right = with_secret(kSecret);
  const auto wrong = with_secret("another secret, also long enough");
  Listening rank0(right);
  EXPECT_THAT(text_of_error([&] { rank0.connect(*wrong); }),
              HasSubstr("the other end has another secret"));
  EXPECT_TRUE(rank0.log.has("a connection from 127.0.0.1:"));
  EXPECT_TRUE(rank0.log.has("the other end has another secret"));
  EXPECT_EQ(rank0.accepted(), 0u);
  rank0.connect(*right);
  rank0.connect(*right, Hello{2, 0, 0});
  EXPECT_EQ(rank0.log.lines.size(), 1u);
}

TEST(AcceptorTest, AcceptsCertificatesOfItsAuthorityOnly) {
  Authority ours, theirs;
  const auto credentials = [](const Identity& identity) {
    return std::make_shared<const Credentials>(identity);
  };
  Listening rank0(credentials(ours.identity("rank0")));
  // Another authority. Neither end trusts the other one.
  EXPECT_THAT(
      text_of_error([&] { rank0.connect(*credentials(theirs.identity("x"))); }),
      HasSubstr("certificate is refused"));
  // Another authority, but it trusts ours.
  Identity spy = theirs.identity("y");
  spy.authority = ours.file();
  EXPECT_THAT(text_of_error([&] { rank0.connect(*credentials(spy)); }),
              HasSubstr("does not know the authority"));
  EXPECT_TRUE(rank0.log.has("the other end's certificate is refused"));
  EXPECT_THAT(text_of_error([&] {
                rank0.connect(*credentials(ours.identity("late", -1)));
              }),
              HasSubstr("expired"));
  // A secret is no certificate.
  EXPECT_NE(text_of_error([&] { rank0.connect(*with_secret(kSecret)); }),
            "no exception");
  EXPECT_EQ(rank0.accepted(), 0u);
  rank0.connect(*credentials(ours.identity("rank1")));
}

TEST(AcceptorTest, NeedsBothIfBothAreGiven) {
  Authority ours;
  Identity both = ours.identity("rank0");
  both.secret = kSecret;
  Identity certificate_only = ours.identity("rank1");
  Identity wrong_secret = certificate_only;
  wrong_secret.secret = "another secret, also long enough";
  Identity right = certificate_only;
  right.secret = kSecret;
  Listening rank0(std::make_shared<const Credentials>(both));
  for (const Identity& each : {certificate_only, wrong_secret}) {
    const Credentials credentials(each);
    EXPECT_NE(text_of_error([&] {
                // The acceptor closes the connection; tries no more after that.
                connect_to(kAddress, rank0.port, credentials, Hello{1, 0, 0},
                           Clock::now() + milliseconds(200));
              }),
              "no exception");
  }
  EXPECT_TRUE(rank0.log.has("it has another secret"));
  EXPECT_EQ(rank0.accepted(), 0u);
  rank0.connect(Credentials(right));
}

TEST(AcceptorTest, RefusesARecordedHandshake) {
  const auto credentials = with_secret(kSecret);
  Listening rank0(credentials);
  const std::string recorded = testing::recorded_handshake(rank0.port, kSecret);
  ASSERT_GT(recorded.size(), 200u);
  for (const auto end = Clock::now() + seconds(20);
       rank0.accepted() == 0 && Clock::now() < end;) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  ASSERT_EQ(rank0.accepted(), 1u);
  testing::send_garbage(rank0.port, recorded);
  EXPECT_TRUE(rank0.log.has("was refused"));
  EXPECT_EQ(rank0.accepted(), 1u);
}

TEST(AcceptorTest, RefusesItsOwnReflection) {
  // A stranger leads rank 0 to rank 0: both ends know the secret.
  const auto credentials = with_secret(kSecret);
  Listening rank0(credentials);
  EXPECT_NE(text_of_error([&] {
              connect_to(kAddress, rank0.port, *credentials, Hello{0, 1, 0},
                         Clock::now() + milliseconds(200));
            }),
            "no exception");
  EXPECT_TRUE(rank0.log.has("rank 0 wants rank 1, but this is rank 0"));
  EXPECT_EQ(rank0.accepted(), 0u);
}

TEST(AcceptorTest, RefusesAnotherStartOfTheWorld) {
  const auto credentials = with_secret(kSecret);
  Listening rank0(credentials, 17);
  EXPECT_NE(text_of_error([&] {
              connect_to(kAddress, rank0.port, *credentials, Hello{1, 0, 18},
                         Clock::now() + milliseconds(200));
            }),
            "no exception");
  EXPECT_TRUE(rank0.log.has("rank 1 is of another start of this world"));
  rank0.connect(*credentials, Hello{1, 0, 17});
}

TEST(AcceptorTest, AcceptsNoStranger) {
  const auto credentials = with_secret(kSecret);
  Listening rank0(credentials);
  const std::string recorded = testing::recorded_handshake(rank0.port, kSecret);
  EXPECT_EQ(
      testing::visit(rank0.port, 5 * testing::kKindsOfStrangers, 1, recorded),
      0);
  EXPECT_EQ(rank0.accepted(), 1u);  // the one that was recorded
  EXPECT_TRUE(rank0.log.has("127.0.0.1"));
  rank0.connect(*credentials);
}

TEST(AcceptorTest, SilentStrangersDoNotKeepOthersOut) {
  const auto credentials = with_secret(kSecret);
  std::optional<Listening> rank0(std::in_place, credentials);
  std::vector<std::future<std::string>> silent;
  for (int k = 0; k < Acceptor::kPending + 20; ++k) {
    silent.push_back(std::async(std::launch::async, [port = rank0->port] {
      return testing::send_garbage(port, "", 20000);
    }));
  }
  rank0->connect(*credentials);
  EXPECT_TRUE(rank0->log.has("the oldest of"));
  rank0.reset();  // which ends the wait of the strangers
}

TEST(CredentialsTest, NamesWhatIsWrong) {
  const auto error = [](const Identity& identity) {
    return text_of_error([&] { Credentials credentials(identity); });
  };
  EXPECT_THAT(error({"short", "", "", ""}),
              AllOf(HasSubstr("5 bytes"), HasSubstr("at least 16"),
                    HasSubstr("openssl rand")));
  Authority ours;
  const Identity good = ours.identity("a"), other = ours.identity("b");
  EXPECT_EQ(error(good), "no exception");
  EXPECT_THAT(error({"", good.certificate, "", good.authority}),
              HasSubstr("no key"));
  EXPECT_THAT(error({"", "/missing.pem", good.key, good.authority}),
              HasSubstr("'/missing.pem'"));
  EXPECT_THAT(error({"", good.certificate, other.key, good.authority}),
              HasSubstr("key values mismatch"));
  EXPECT_THAT(error({"", good.certificate, good.key, "/missing.pem"}),
              HasSubstr("the authority '/missing.pem'"));
}

TEST(RefusalsTest, ReportsFloodsWithoutAFlood) {
  Log log;
  const auto& refusals = log.refusals;
  EXPECT_EQ(refusals->summary(), "");
  for (int k = 0; k < 1234; ++k)
    refusals->add("10.0.0.7:" + std::to_string(k), "x");
  refusals->add("[fd00::1]:80", "y");
  EXPECT_EQ(log.text(),
            "a connection from 10.0.0.7:0 was refused: x\n"
            "a connection from 10.0.0.7:9 was refused: x (10 from 10.0.0.7 so "
            "far)\n"
            "a connection from 10.0.0.7:99 was refused: x (100 from 10.0.0.7 "
            "so far)\n"
            "a connection from 10.0.0.7:999 was refused: x (1000 from 10.0.0.7 "
            "so far)\n"
            "a connection from [fd00::1]:80 was refused: y\n");
  EXPECT_EQ(refusals->summary(),
            "1235 connections were refused, the last one because: y");
}

// The meshes of all ranks, in one process.
class Meshes {
 public:
  explicit Meshes(int size, std::shared_ptr<const Credentials> credentials =
                                with_secret(kSecret)) {
    std::vector<std::future<std::unique_ptr<Mesh>>> futures;
    for (int rank = 0; rank < size; ++rank) {
      MeshOptions options;
      options.rank = rank;
      options.size = size;
      options.address = kAddress;
      options.credentials = credentials;
      options.refusals = log.refusals;
      options.deadline = Clock::now() + seconds(30);
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

  Log log;
  std::vector<std::unique_ptr<Mesh>> meshes;

 private:
  std::mutex mutex_;
  std::map<int, std::string> places_;
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

TEST(MeshTest, MessagesArriveWhole) {
  const std::vector<std::size_t> sizes = {0,     1,     1000,  16367,
                                          16368, 16369, 40000, 3000000};
  Meshes all(3);
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

TEST(MeshTest, NamesRanksThatDoNotConnect) {
  Log log;
  MeshOptions options;
  options.rank = 0;
  options.size = 3;
  options.address = kAddress;
  options.credentials = with_secret(kSecret);
  options.refusals = log.refusals;
  options.deadline = Clock::now() + milliseconds(50);
  options.tell = [](const std::string&) {};
  options.ask = [](int) { return std::string(); };
  EXPECT_THAT(text_of_error([&] { Mesh mesh(options); }),
              HasSubstr("no connection to 127.0.0.1 from rank 1, 2"));
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
