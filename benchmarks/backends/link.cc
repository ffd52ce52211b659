// A link between two network namespaces with a rate and a delay, for kernels
// without tc's netem.
//
//   link HOST0 HOST1 BITS_PER_SECOND DELAY_SECONDS
//
// DELAY_SECONDS is that of one direction.
//
// Makes a TUN device `gpipe` in each namespace, with the addresses 10.77.0.1
// and 10.77.0.2. Prints "ready" and carries packets until its input ends. A
// packet has up to 64 KiB, as between a host and a network card that cuts.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// What is under way at most; later packets are dropped.
constexpr std::size_t kMostBytes = 64 << 20;
constexpr std::size_t kLargestPacket = (64 << 10) + 64;

int checked(int result, const char* what) {
  if (result < 0) {
    throw std::system_error(errno, std::generic_category(), what);
  }
  return result;
}

void set(int socket, unsigned long request, ifreq& interface,
         const char* what) {
  checked(::ioctl(socket, request, &interface), what);
}

// Returns the device of a namespace.
int make_device(const std::string& host, const char* own, const char* other) {
  const std::string path = "/run/netns/" + host;
  checked(::setns(checked(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "open"),
                  CLONE_NEWNET),
          "setns");
  const int device =
      checked(::open("/dev/net/tun", O_RDWR | O_NONBLOCK), "/dev/net/tun");
  ifreq interface {};
  std::strcpy(interface.ifr_name, "gpipe");
  interface.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  set(device, TUNSETIFF, interface, "TUNSETIFF");
  checked(::ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4),
          "TUNSETOFFLOAD");
  const int socket = checked(::socket(AF_INET, SOCK_DGRAM, 0), "socket");
  auto* const address = reinterpret_cast<sockaddr_in*>(&interface.ifr_addr);
  const auto set_address = [&](unsigned long request, const char* text) {
    *address = {};
    address->sin_family = AF_INET;
    ::inet_pton(AF_INET, text, &address->sin_addr);
    set(socket, request, interface, text);
  };
  set_address(SIOCSIFADDR, own);
  set_address(SIOCSIFDSTADDR, other);
  interface.ifr_mtu = 9000;
  set(socket, SIOCSIFMTU, interface, "MTU");
  interface.ifr_qlen = 10000;
  set(socket, SIOCSIFTXQLEN, interface, "queue");
  interface.ifr_flags = IFF_UP | IFF_RUNNING;
  set(socket, SIOCSIFFLAGS, interface, "up");
  ::close(socket);
  return device;
}

// Carries the packets of one direction.
void carry(int from, int to, double bits_per_second, double delay) {
  ::prctl(PR_SET_TIMERSLACK, 1);
  using Buffer = std::unique_ptr<char[]>;
  struct Packet {
    Clock::time_point due;
    Buffer buffer;
    std::size_t size;
  };
  const auto seconds = [](double value) {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(value));
  };
  std::deque<Packet> flying;
  std::vector<Buffer> spare;
  std::size_t bytes = 0;
  auto is_free = Clock::now();
  while (true) {
    timespec wait{1, 0};
    if (!flying.empty()) {
      const auto left =
          std::max(flying.front().due - Clock::now(), Clock::duration::zero());
      wait = {0, std::min<long>(left.count(), 999999999)};
    }
    pollfd poll{from, POLLIN, 0};
    ::ppoll(&poll, 1, &wait, nullptr);
    for (int k = 0; k < 16; ++k) {
      if (spare.empty()) {
        spare.push_back(std::make_unique_for_overwrite<char[]>(kLargestPacket));
      }
      const ssize_t size = ::read(from, spare.back().get(), kLargestPacket);
      if (size <= 0) break;
      if (bytes + static_cast<std::size_t>(size) > kMostBytes) continue;
      bytes += static_cast<std::size_t>(size);
      is_free = std::max(is_free, Clock::now()) +
                seconds(8.0 * static_cast<double>(size) / bits_per_second);
      flying.push_back({is_free + seconds(delay), std::move(spare.back()),
                        static_cast<std::size_t>(size)});
      spare.pop_back();
    }
    while (!flying.empty() && flying.front().due <= Clock::now()) {
      Packet packet = std::move(flying.front());
      flying.pop_front();
      bytes -= packet.size;
      if (::write(to, packet.buffer.get(), packet.size) < 0 && errno == EBADF) {
        return;
      }
      spare.push_back(std::move(packet.buffer));
    }
  }
}

void run(char** argv) {
  const int first = make_device(argv[1], "10.77.0.1", "10.77.0.2");
  const int second = make_device(argv[2], "10.77.0.2", "10.77.0.1");
  const double rate = std::atof(argv[3]), delay = std::atof(argv[4]);
  std::thread(carry, first, second, rate, delay).detach();
  std::thread(carry, second, first, rate, delay).detach();
  std::cout << "ready" << std::endl;
  while (std::cin.get() != EOF) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 1;
  try {
    run(argv);
  } catch (const std::exception& error) {
    std::cerr << "link: " << error.what() << "\n";
    return 2;
  }
  std::cout.flush();
  ::_exit(0);
}
