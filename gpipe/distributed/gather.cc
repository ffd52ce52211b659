#include "gpipe/distributed/gather.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "gpipe/distributed/wire.h"

namespace gpipe {
namespace {

// A first packet of a size that both sides know: a checksum of what follows in
// it, the number of bytes, what is going on, and as many of the bytes as fit
// in. The rest, if there is one, comes after it.
constexpr int64_t kPacket = 512;
constexpr int64_t kChecksum = 4, kLength = 8, kAction = 64;
constexpr int64_t kHead = kChecksum + kLength + kAction;
constexpr int64_t kMost = int64_t{1} << 30;

void put_number(uint8_t* bytes, int64_t size, uint64_t value) {
  for (int64_t k = 0; k < size; ++k) {
    bytes[k] = static_cast<uint8_t>(value >> (8 * k));
  }
}

uint64_t take_number(const uint8_t* bytes, int64_t size) {
  uint64_t value = 0;
  for (int64_t k = 0; k < size; ++k) value |= uint64_t{bytes[k]} << (8 * k);
  return value;
}

uint32_t checksum_of(const uint8_t* packet) {
  return crc32c(packet + kChecksum, kPacket - kChecksum);
}

class Mail {
 public:
  Mail(World& world, int tag, const std::string& action)
      : world_(world), tag_(tag), action_(action) {}

  void send(int to, const std::string& text) {
    const auto size = static_cast<int64_t>(text.size());
    const int64_t first = std::min(size, kPacket - kHead);
    const at::Tensor packet = at::zeros({kPacket}, at::kByte);
    auto* const bytes = packet.mutable_data_ptr<uint8_t>();
    put_number(bytes + kChecksum, kLength, static_cast<uint64_t>(size));
    action_.copy(reinterpret_cast<char*>(bytes) + kChecksum + kLength, kAction);
    std::memcpy(bytes + kHead, text.data(), first);
    put_number(bytes, kChecksum, checksum_of(bytes));
    post(to, packet);
    if (first == size) return;
    const at::Tensor rest = at::empty({size - first}, at::kByte);
    std::memcpy(rest.mutable_data_ptr(), text.data() + first, size - first);
    post(to, rest);
  }

  void flush() {
    for (auto& [to, work] : sends_) wait(*work, to);
    sends_.clear();
  }

  std::string receive(int from) {
    const at::Tensor packet = at::empty({kPacket}, at::kByte);
    take(from, packet);
    const auto* const bytes = packet.const_data_ptr<uint8_t>();
    const uint64_t length = take_number(bytes + kChecksum, kLength);
    if (take_number(bytes, kChecksum) != checksum_of(bytes) ||
        length > static_cast<uint64_t>(kMost)) {
      disagree(from, "it sent something that is no message of gpipe's");
    }
    const auto* const action =
        reinterpret_cast<const char*>(bytes) + kChecksum + kLength;
    const std::string theirs(action, ::strnlen(action, kAction));
    if (theirs != action_.substr(0, kAction)) {
      disagree(from, "it is at '" + theirs + "', but rank " +
                         std::to_string(world_.rank()) + " at '" + action_ +
                         "'; call the same functions on all ranks");
    }
    const auto size = static_cast<int64_t>(length);
    const int64_t first = std::min(size, kPacket - kHead);
    std::string text(reinterpret_cast<const char*>(bytes) + kHead, first);
    if (first == size) return text;
    const at::Tensor rest = at::empty({size - first}, at::kByte);
    take(from, rest);
    text.append(static_cast<const char*>(rest.const_data_ptr()), size - first);
    return text;
  }

 private:
  void post(int to, const at::Tensor& bytes) {
    sends_.emplace_back(to, world_.send(bytes, to, tag_, say_action_));
  }
  void take(int from, const at::Tensor& bytes) {
    wait(*world_.receive(bytes, from, tag_, say_action_), from);
  }
  void wait(c10d::Work& work, int peer) {
    world_.wait(work, peer, say_action_);
  }
  void disagree(int from, const std::string& what) {
    RankFailure failure;
    failure.fault = Fault::kDisagree;
    failure.rank = from;
    failure.reporter = world_.rank();
    failure.action = action_;
    failure.what = what;
    world_.fail(failure);
    world_.check();
  }

  World& world_;
  const int tag_;
  const std::string& action_;
  const World::Action say_action_ = [this] { return action_; };
  std::vector<std::pair<int, c10::intrusive_ptr<c10d::Work>>> sends_;
};

}  // namespace

std::vector<std::string> all_gather(World& world,
                                    const std::vector<int>& members, int tag,
                                    const std::string& mine,
                                    const std::string& action) {
  if (members.size() == 1) return {mine};
  Mail mail(world, tag, action);
  const int first = members.front();
  std::vector<std::string> all;
  if (world.rank() != first) {
    mail.send(first, mine);
    for (std::size_t k = 0; k < members.size(); ++k) {
      all.push_back(mail.receive(first));
    }
    mail.flush();
    return all;
  }
  for (const int member : members) {
    all.push_back(member == first ? mine : mail.receive(member));
  }
  for (const int member : members) {
    if (member == first) continue;
    for (const std::string& each : all) mail.send(member, each);
  }
  mail.flush();
  return all;
}

}  // namespace gpipe
