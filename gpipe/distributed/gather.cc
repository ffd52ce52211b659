#include "gpipe/distributed/gather.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

namespace gpipe {
namespace {

// A first packet of a size that both sides know, with the number of bytes and
// as many of them as fit in; the rest, if there is one, comes after it.
constexpr int64_t kPacket = 512;
constexpr int64_t kLength = 8;
constexpr int64_t kMost = int64_t{1} << 30;

class Mail {
 public:
  Mail(World& world, int tag, const std::string& action)
      : world_(world), tag_(tag), action_(action) {}

  void send(int to, const std::string& text) {
    const auto size = static_cast<int64_t>(text.size());
    const int64_t first = std::min(size, kPacket - kLength);
    const at::Tensor packet = at::zeros({kPacket}, at::kByte);
    auto* const bytes = packet.mutable_data_ptr<uint8_t>();
    for (int k = 0; k < kLength; ++k) {
      bytes[k] = static_cast<uint8_t>(static_cast<uint64_t>(size) >> (8 * k));
    }
    std::memcpy(bytes + kLength, text.data(), first);
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
    uint64_t length = 0;
    for (int k = 0; k < kLength; ++k) length |= uint64_t{bytes[k]} << (8 * k);
    TORCH_CHECK(length <= static_cast<uint64_t>(kMost), "rank ", from,
                " sent something that is no message of gpipe's (", action_,
                ")");
    const auto size = static_cast<int64_t>(length);
    const int64_t first = std::min(size, kPacket - kLength);
    std::string text(reinterpret_cast<const char*>(bytes) + kLength, first);
    if (first == size) return text;
    const at::Tensor rest = at::empty({size - first}, at::kByte);
    take(from, rest);
    text.append(static_cast<const char*>(rest.const_data_ptr()), size - first);
    return text;
  }

 private:
  void post(int to, const at::Tensor& bytes) {
    std::vector<at::Tensor> list{bytes};
    sends_.emplace_back(to, world_.group().send(list, to, tag_));
  }
  void take(int from, const at::Tensor& bytes) {
    std::vector<at::Tensor> list{bytes};
    wait(*world_.group().recv(list, from, tag_), from);
  }
  void wait(c10d::Work& work, int peer) {
    world_.wait(work, peer, [this] { return action_; });
  }

  World& world_;
  const int tag_;
  const std::string& action_;
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
