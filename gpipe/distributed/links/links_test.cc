// Only processes of the same world connect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/links/connect.h"
#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/greeter.h"
#include "gpipe/distributed/links/refusals.h"
#include "gpipe/distributed/links/testing/certificates.h"
#include "gpipe/distributed/links/testing/refusal_log.h"
#include "gpipe/distributed/links/testing/strangers.h"

namespace gpipe::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using testing::Authority;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// As World::connect() does: a closed connection is an error.
[[maybe_unused]] const auto kHandler = std::signal(SIGPIPE, SIG_IGN);

// The greeter of rank 0, which keeps the connections that it has accepted.
struct Listening {
  explicit Listening(std::shared_ptr<const Credentials> credentials,
                     uint64_t token = 0)
      : Listening(listen_on(kAddress, 0), std::move(credentials), token) {}
  Listening(Descriptor listening,
            std::shared_ptr<const Credentials> credentials, uint64_t token)
      : port(port_of(listening)),
        greeter(
            std::move(listening), std::move(credentials), Hello{0, -1, token},
            [this](Socket& socket, const Hello&) {
              std::lock_guard<std::mutex> lock(mutex);
              sockets.push_back(std::move(socket));
              return std::string();
            },
            log.refusals) {}

  std::size_t accepted() {
    std::lock_guard<std::mutex> lock(mutex);
    return sockets.size();
  }
  Socket connect(const Credentials& credentials, Hello hello = {1, 0, 0}) {
    return connect_to(kAddress, port, credentials, hello,
                      Clock::now() + seconds(20));
  }

  // Connects until a refusal has the text `reason`. The greeter closes each
  // connection, so that there is no error but the deadline's.
  void expect_refused(const Credentials& credentials, Hello hello,
                      const std::string& reason) {
    const auto end = Clock::now() + seconds(20);
    while (!log.has_now(reason) && Clock::now() < end) {
      EXPECT_NE(text_of_error([&] {
                  connect_to(kAddress, port, credentials, hello,
                             Clock::now() + milliseconds(200));
                }),
                "no exception");
    }
    EXPECT_TRUE(log.has_now(reason)) << log.text();
    EXPECT_EQ(accepted(), 0u);
  }

  Log log;
  const int port;
  std::mutex mutex;
  std::vector<Socket> sockets;
  Greeter greeter;
};

TEST(GreeterTest, AcceptsTheSecretOnly) {
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

TEST(GreeterTest, AcceptsCertificatesOfItsAuthorityOnly) {
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

TEST(GreeterTest, NeedsBothIfBothAreGiven) {
  Authority ours;
  Identity both = ours.identity("rank0");
  both.secret = kSecret;
  Identity certificate_only = ours.identity("rank1");
  Identity wrong_secret = certificate_only;
  wrong_secret.secret = "another secret, also long enough";
  Identity right = certificate_only;
  right.secret = kSecret;
  Listening rank0(std::make_shared<const Credentials>(both));
  rank0.expect_refused(Credentials(certificate_only), {1, 0, 0}, "refused");
  rank0.expect_refused(Credentials(wrong_secret), {1, 0, 0},
                       "it has another secret");
  rank0.connect(Credentials(right));
}

TEST(GreeterTest, RefusesARecordedHandshake) {
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

TEST(GreeterTest, RefusesItsOwnReflection) {
  // A stranger leads rank 0 to rank 0: both ends know the secret.
  const auto credentials = with_secret(kSecret);
  Listening rank0(credentials);
  rank0.expect_refused(*credentials, {0, 1, 0},
                       "rank 0 wants rank 1, but this is rank 0");
}

TEST(GreeterTest, RefusesAnotherStartOfTheWorld) {
  const auto credentials = with_secret(kSecret);
  Listening rank0(credentials, 17);
  rank0.expect_refused(*credentials, {1, 0, 18},
                       "rank 1 is of another start of this world");
  rank0.connect(*credentials, Hello{1, 0, 17});
}

TEST(GreeterTest, AcceptsNoStranger) {
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

TEST(GreeterTest, SilentStrangersDoNotKeepOthersOut) {
  const auto credentials = with_secret(kSecret);
  std::optional<Listening> rank0(std::in_place, credentials);
  std::vector<std::future<std::string>> silent;
  for (int k = 0; k < Greeter::kPending + 20; ++k) {
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

}  // namespace
}  // namespace gpipe::internal
