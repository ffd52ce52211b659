#include "gpipe/distributed/world/exchanges.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "gpipe/base/crc32c.h"
#include "gpipe/distributed/error.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/topology.h"

namespace gpipe::internal {
namespace {

// A text is sent as a packet of a fixed size, which both sides know: a checksum
// of the rest of the packet, the number of bytes, and as many bytes as fit.
// Further bytes follow in a second message.
constexpr std::size_t kPacket = 512;
constexpr std::size_t kChecksum = sizeof(uint32_t);
constexpr std::size_t kFits = kPacket - kChecksum - sizeof(uint64_t);
constexpr std::size_t kMost = std::size_t{1} << 30;
// gather() sends longer texts in pieces of this size.
constexpr std::size_t kPiece = std::size_t{1} << 22;

uint32_t checksum_of(const std::string& packet) {
  return crc32c(packet.data() + kChecksum, kPacket - kChecksum);
}

// Texts that are sent to and received from other ranks.
class Mail {
 public:
  Mail(Communicator& world, int tag, const std::string& action)
      : world_(world), tag_(tag), action_(action) {}

  void send(int to, const std::string& text) {
    TORCH_CHECK_VALUE(text.size() <= kMost, "all_gather() was given ",
                      text.size(), " bytes in all, but at most ", kMost,
                      " are possible; gather() has no such limit");
    std::string packet = pack(uint32_t{0}, static_cast<uint64_t>(text.size()));
    packet.append(text, 0, kFits);
    packet.resize(kPacket);
    post(to, packet.replace(0, kChecksum, pack(checksum_of(packet))));
    if (text.size() > kFits) post(to, text.substr(kFits));
  }

  void flush() {
    for (const auto& [to, work] : sends_) wait(work, to);
    sends_.clear();
  }

  std::string receive(int from) {
    const std::string packet = take_bytes(from, kPacket);
    std::size_t at = 0;
    uint32_t checksum = 0;
    uint64_t size = 0;
    unpack(packet, at, checksum, size);
    if (checksum != checksum_of(packet) || size > kMost) {
      disagree(from, "it sent something that is not a message of gpipe");
    }
    std::string text = packet.substr(at, size);
    if (size > kFits) text += take_bytes(from, size - kFits);
    return text;
  }

  // Reports rank `from` as failed, and throws. The parts of `what` are put
  // together.
  template <typename... Parts>
  void disagree(int from, const Parts&... what) {
    world_.fail(
        {Fault::kDisagree, from, world_.rank(), action_, c10::str(what...)});
    world_.check();
  }

 private:
  void post(int to, const std::string& text) {
    const at::Tensor bytes =
        at::empty({static_cast<int64_t>(text.size())}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
    sends_.emplace_back(to, world_.send(bytes, to, tag_, say_action_));
  }
  std::string take_bytes(int from, std::size_t size) {
    const at::Tensor bytes = at::empty({static_cast<int64_t>(size)}, at::kByte);
    wait(world_.receive(bytes, from, tag_, say_action_), from);
    return {static_cast<const char*>(bytes.const_data_ptr()), size};
  }
  void wait(const Transport::Work& work, int peer) {
    const int before = world_.waits().set_own(peer);
    world_.wait(work, peer, say_action_);
    world_.waits().set_own(peer, before);
  }

  Communicator& world_;
  const int tag_;
  const std::string& action_;
  const Transport::Action say_action_ = [this] { return action_; };
  std::vector<std::pair<int, Transport::Work>> sends_;
};

}  // namespace

std::vector<std::string> all_gather(Communicator& world,
                                    const std::vector<int>& members, int tag,
                                    const std::string& mine,
                                    const std::string& action) {
  if (members.size() == 1) return {mine};
  Mail mail(world, tag, action);
  const auto place = std::find(members.begin(), members.end(), world.rank());
  TORCH_INTERNAL_ASSERT(place != members.end());
  const std::size_t own = place - members.begin();
  const auto children = tree_children(own, members.size());
  // The actions and texts of the members of this subtree, in their order.
  std::string bundle = pack(action, mine);
  for (const std::size_t child : children) {
    bundle += mail.receive(members[child]);
  }
  if (own > 0) {
    const int parent = members[tree_parent(own)];
    mail.send(parent, bundle);
    bundle = mail.receive(parent);
  }
  const std::vector<std::string> texts = take_texts(bundle);
  std::vector<std::string> all;
  for (std::size_t k = 0; k + 1 < texts.size(); k += 2) {
    const std::size_t member = all.size();
    if (member < members.size() && texts[k] != action) {
      mail.disagree(members[member], "it is at '", texts[k], "', but rank ",
                    world.rank(), " is at '", action,
                    "'; call the same functions on all ranks");
    }
    all.push_back(texts[k + 1]);
  }
  if (all.size() != members.size()) {
    mail.disagree(members.front(), "it sent ", all.size(), " texts of ",
                  members.size(), " ranks; run the same gpipe on all ranks");
  }
  for (const std::size_t child : children) mail.send(members[child], bundle);
  try {
    mail.flush();
  } catch (const PeerError&) {
    // A member that has the texts may leave the world at once, for example by
    // an error that all of them throw. This one has all texts, too. What comes
    // next finds the failure.
  }
  return all;
}

std::vector<std::string> all_gather(Communicator& world, int tag,
                                    const std::string& mine,
                                    const std::string& action) {
  return all_gather(world, world.all_ranks(), tag, mine, action);
}

void meet(Communicator& world, const std::vector<int>& members, int tag,
          const std::string& action) {
  try {
    all_gather(world, members, tag, "", action);
  } catch (const PeerError&) {
    // A member has ended the world after all had called.
  }
}

std::vector<std::string> gather(Communicator& world, int tag,
                                const std::string& mine,
                                const std::string& action) {
  const auto sizes =
      all_gather(world, tag, pack(static_cast<uint64_t>(mine.size())), action);
  Mail mail(world, tag, action);
  if (world.rank() > 0) {
    for (std::size_t at = 0; at < mine.size(); at += kPiece) {
      mail.send(0, mine.substr(at, kPiece));
      mail.flush();
    }
    return {};
  }
  std::vector<std::string> all(world.size());
  all[0] = mine;
  // A piece of each rank in turn, so that none waits for another's whole text.
  bool is_complete = false;
  for (std::size_t at = 0; !is_complete; at += kPiece) {
    is_complete = true;
    for (int rank = 1; rank < world.size(); ++rank) {
      std::size_t begin = 0;
      if (at >= take<uint64_t>(sizes[rank], begin)) continue;
      all[rank] += mail.receive(rank);
      is_complete = false;
    }
  }
  return all;
}

std::optional<TextDifference> find_difference(Communicator& world,
                                              const std::vector<int>& members,
                                              int tag, const std::string& mine,
                                              const std::string& action) {
  const uint32_t checksum =
      crc32c(mine.data(), static_cast<int64_t>(mine.size()));
  const auto checksums =
      all_gather(world, members, tag, pack(checksum), action);
  const auto other = std::ranges::find_if(
      checksums, [&](const auto& each) { return each != checksums.front(); });
  if (other == checksums.end()) return std::nullopt;
  const std::size_t at = other - checksums.begin();
  const bool is_compared =
      world.rank() == members.front() || world.rank() == members[at];
  const auto texts =
      all_gather(world, members, tag, is_compared ? mine : "", action);
  return TextDifference{members[at], texts.front(), texts[at]};
}

namespace {

// Returns how the terms of `rank` differ from those of rank 0. Both are names
// and values in turn.
std::string difference(const std::vector<std::string>& theirs,
                       const std::vector<std::string>& ours, int rank) {
  const std::size_t most = std::max(theirs.size(), ours.size());
  for (std::size_t k = 0; k < most; k += 2) {
    if (k + 1 >= theirs.size() || k + 1 >= ours.size() ||
        theirs[k] != ours[k]) {
      return "it is of another version of gpipe than rank 0; run the same "
             "gpipe on all ranks";
    }
    if (theirs[k + 1] == ours[k + 1]) continue;
    return c10::str(ours[k], " is ", theirs[k + 1], " on rank ", rank, ", but ",
                    ours[k + 1], " on rank 0; give all ranks the same");
  }
  return "";
}

}  // namespace

void agree(Communicator& world, int tag, const Terms& terms) {
  std::string mine;
  for (const auto& [name, value] : terms) mine += pack(name, value);
  const std::string action = "comparing what the ranks were given";
  const auto found =
      find_difference(world, world.all_ranks(), tag, mine, action);
  if (!found) return meet(world, world.all_ranks(), tag, action);
  world.fail({Fault::kDisagree, found->rank, world.rank(), "",
              difference(take_texts(found->other), take_texts(found->first),
                         found->rank)});
  world.check();
}

namespace {

constexpr int kRounds = 16;

double now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

ClockOffset measure_clock(Communicator& world, int channel) {
  const std::string action = "comparing clocks";
  Mail mail(world, Tags(channel).words, action);
  if (world.rank() == 0) {
    for (int rank = 1; rank < world.size(); ++rank) {
      for (int round = 0; round < kRounds; ++round) {
        mail.receive(rank);
        mail.send(rank, pack(now()));
        mail.flush();
      }
    }
    return {0, 0, now()};
  }
  double least = -std::numeric_limits<double>::infinity(), most = -least;
  for (int round = 0; round < kRounds; ++round) {
    const double asked = now();
    mail.send(0, "");
    mail.flush();
    std::size_t at = 0;
    const auto theirs = take<double>(mail.receive(0), at);
    const double answered = now();
    least = std::max(least, theirs - answered);
    most = std::min(most, theirs - asked);
  }
  // A clock that drifts may leave nothing in the intersection.
  return {(least + most) / 2, std::max(0.0, (most - least) / 2), now()};
}

ClockOffset offset_at(const ClockOffset& before, const ClockOffset& after,
                      double time) {
  const double passed = after.at - before.at;
  const double part = passed > 0 ? (time - before.at) / passed : 0;
  return {before.seconds + part * (after.seconds - before.seconds),
          std::max(before.error, after.error), time};
}

}  // namespace gpipe::internal
