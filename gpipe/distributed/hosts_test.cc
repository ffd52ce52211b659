// Ranks on several simulated machines. Each is a network namespace with its own
// interface and address, on a bridge. Ranks in different namespaces reach each
// other as over a network, not by loopback.
//
// Making namespaces requires root, or a kernel that lets users have their own;
// without either, the tests are skipped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/comparison.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::argument;
using testing::check;
using testing::expect_all_ok;
using testing::mean_square;
using testing::RankProgramEntry;
using testing::Ranks;
using testing::world_options;
using torch::Tensor;
namespace nn = torch::nn;

constexpr char kNoRight[] =
    "SKIPPED: no right to make network namespaces here, so nothing was shown "
    "about several hosts; run as root, or allow user namespaces (sysctl "
    "kernel.unprivileged_userns_clone=1), and outside of a sandbox (";

void check_call(int result, const std::string& what) {
  check(result == 0, what + ": " + std::strerror(errno));
}

// Runs `part` on a new thread, because each thread has its own namespace.
void on_a_thread(const std::function<void()>& part) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      part();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

void enter(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(file >= 0, "no namespace at " + path);
  check_call(::setns(file, CLONE_NEWNET), "setns " + path);
  ::close(file);
}

// A network namespace, for as long as the object lives.
class Namespace {
 public:
  Namespace() {
    on_a_thread([this] {
      check_call(::unshare(CLONE_NEWNET), "unshare");
      file_ = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
      check(file_ >= 0, "no /proc/thread-self/ns/net");
    });
  }
  ~Namespace() { ::close(file_); }
  Namespace(const Namespace&) = delete;
  Namespace& operator=(const Namespace&) = delete;

  // Returns its path, which other processes can use while this process lives.
  std::string path() const {
    return "/proc/" + std::to_string(::getpid()) + "/fd/" +
           std::to_string(file_);
  }

  void run(const std::string& command) const {
    on_a_thread([&] {
      enter(path());
      const std::string all = "PATH=$PATH:/usr/sbin:/sbin; " + command;
      check(std::system(all.c_str()) == 0, "'" + command + "' has failed");
    });
  }

 private:
  int file_ = -1;
};

class Network {
 public:
  explicit Network(int hosts) : hosts_(hosts) {
    middle_.run("ip link add bridge type bridge && ip link set bridge up");
    for (int k = 0; k < hosts; ++k) {
      const std::string port = "port" + std::to_string(k);
      middle_.run("ip link add " + port + " type veth peer name wire && " +
                  "ip link set wire netns " + hosts_[k].path() +
                  " && ip link set " + port + " master bridge up");
      hosts_[k].run("ip link set lo up && ip address add " + address(k) +
                    "/24 dev wire && ip link set wire up");
    }
  }

  int hosts() const { return static_cast<int>(hosts_.size()); }
  static std::string address(int host) {
    return "10.77.0." + std::to_string(host + 1);
  }
  const Namespace& host(int host) const { return hosts_[host]; }

  void cut(int host) const {
    middle_.run("ip link set port" + std::to_string(host) + " down");
  }

  // Places neighbouring ranks on one host, as a launcher does.
  std::vector<Ranks::Arguments> arguments(int ranks,
                                          Ranks::Arguments more) const {
    std::vector<Ranks::Arguments> all;
    for (int rank = 0; rank < ranks; ++rank) {
      const int host = rank * hosts() / ranks;
      Ranks::Arguments& each = all.emplace_back(more);
      each.emplace_back("namespace", hosts_[host].path());
      each.emplace_back("host", address(host));
      each.emplace_back("address", address(0));  // of rank 0
    }
    return all;
  }

 private:
  const Namespace middle_;
  const std::vector<Namespace> hosts_;
};

// Returns why namespaces cannot be made here, "" if they can.
std::string obstacle() {
  static const std::string result = []() -> std::string {
    try {
      const uid_t user = ::geteuid();
      const gid_t group = ::getegid();
      if (user != 0) {
        check_call(::unshare(CLONE_NEWUSER), "no user namespace");
        std::ofstream("/proc/self/setgroups") << "deny";
        std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
        std::ofstream("/proc/self/gid_map") << "0 " << group << " 1";
      }
      const Network network(1);
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  }();
  return result;
}

std::shared_ptr<World> connect_on_host() {
  enter(argument("namespace"));
  WorldOptions options = world_options();
  options.address = argument("address");
  return World::connect(options);
}

nn::Sequential make_model() {
  torch::manual_seed(3);
  return testing::skip_model();
}

// Each rank also trains the whole model in a GPipe, and compares.
const RankProgramEntry kTrain("train", [] {
  const auto world = connect_on_host();
  torch::set_num_threads(1);
  const int ranks = world->size();
  nn::Sequential layers = make_model(), whole = make_model();
  const auto balance = testing::cut(layers->size(), ranks);
  DistributedPipeline pipeline(layers, testing::on_cpu(balance), world);
  GPipe reference(whole, testing::on_cpu(balance, ranks));
  auto optimizer = testing::optimizer_of(pipeline);
  auto reference_optimizer = testing::optimizer_of(reference);
  const Schedule schedule = one_forward_one_backward(ranks, 4);
  for (int step = 0; step < 20; ++step) {
    torch::manual_seed(100 + step);
    const Tensor input = torch::randn({8, 4}, torch::kDouble);
    const Tensor target = torch::randn({8, 4}, torch::kDouble);
    optimizer.zero_grad();
    const StepResult result =
        pipeline->train_step(input, target, mean_square, schedule);
    optimizer.step();
    reference_optimizer.zero_grad();
    const StepResult expected =
        reference->train_step(input, target, mean_square, schedule);
    reference_optimizer.step();
    const std::string where = "step " + std::to_string(step);
    check(result.loss.equal(expected.loss), where + ": loss");
    testing::check_same_state(*pipeline, *reference, where);
  }
  // The rank must use its host's network.
  check(std::system(("PATH=$PATH:/usr/sbin:/sbin; ip -4 -o address | grep -q "
                     "' " +
                     argument("host") + "/24 '")
                        .c_str()) == 0,
        "not on its host");
  std::cout << "trained on " << argument("host") << std::endl;
  return 0;
});

// Trains until a rank fails.
const RankProgramEntry kEndless("endless", [] {
  const auto world = connect_on_host();
  torch::set_num_threads(1);
  nn::Sequential layers = make_model();
  std::vector<int64_t> balance(world->size(), 1);
  balance.back() = static_cast<int64_t>(layers->size()) - world->size() + 1;
  DistributedPipeline pipeline(layers, testing::on_cpu(balance), world);
  const Schedule schedule = one_forward_one_backward(world->size(), 4);
  const Tensor input = torch::ones({8, 4}, torch::kDouble);
  try {
    for (int step = 0;; ++step) {
      pipeline->train_step(input, input, mean_square, schedule);
      if (step == 3) std::cout << "training" << std::endl;
    }
  } catch (const PeerError& error) {
    std::cerr << error.what_without_backtrace() << std::endl;
    const RankFailure& failure = error.failure();
    // The rank named in the failure. The disconnected host reports all other
    // hosts.
    std::cout << (world->rank() == 2 || failure.rank == 2 ? "the other side "
                                                          : "its own side ")
              << to_string(failure.fault) << std::endl;
  }
  return 0;
});

class Hosts : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Hosts, TrainToTheBitsOfOneProcess) {
  if (!obstacle().empty()) GTEST_SKIP() << kNoRight << obstacle() << ")";
  const auto [hosts, ranks] = GetParam();
  const Network network(hosts);
  const auto results = Ranks("train", network.arguments(ranks, {})).wait();
  expect_all_ok(results);
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(results[rank].out,
              "trained on " + Network::address(rank * hosts / ranks) + "\n");
  }
}

INSTANTIATE_TEST_SUITE_P(Network, Hosts,
                         ::testing::Values(std::make_tuple(2, 2),
                                           std::make_tuple(4, 4),
                                           std::make_tuple(2, 4)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) +
                                  "Hosts" +
                                  std::to_string(std::get<1>(info.param)) +
                                  "Ranks";
                         });

// No packet reports a broken cable; only the missing heartbeats do.
TEST(Hosts, ReportALinkThatGoesDownAsFrozen) {
  if (!obstacle().empty()) GTEST_SKIP() << kNoRight << obstacle() << ")";
  using std::chrono::milliseconds;
  constexpr milliseconds kHeartbeat{3000}, kMargin{1000};
  const Network network(3);
  Ranks ranks("endless",
              network.arguments(
                  3, {{"heartbeat_ms", std::to_string(kHeartbeat.count())}}));
  ASSERT_TRUE(ranks.wait_for_line("training"));
  const auto begin = std::chrono::steady_clock::now();
  network.cut(2);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(ranks.wait_for_line(rank, "the other side is frozen"))
        << "rank " << rank;
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(took, kHeartbeat - kMargin);
  EXPECT_LT(took, kHeartbeat + kMargin);
  const auto results = ranks.wait(std::chrono::seconds(10));
  expect_all_ok(results);
}

}  // namespace
}  // namespace gpipe
