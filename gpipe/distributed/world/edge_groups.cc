#include "gpipe/distributed/world/edge_groups.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

namespace gpipe::internal {

using c10d::ProcessGroupGloo;

EdgeGroups::EdgeGroups(c10::intrusive_ptr<c10d::Store> store, int rank,
                       int size, const std::string& address,
                       std::chrono::milliseconds connecting,
                       std::chrono::milliseconds waiting)
    : c10d::Backend(rank, size),
      store_(std::move(store)),
      connecting_(connecting),
      waiting_(waiting),
      device_(ProcessGroupGloo::createDeviceForHostname(address)) {}

EdgeGroups::~EdgeGroups() = default;

EdgeGroups::Group EdgeGroups::group_with(int peer) {
  TORCH_CHECK_VALUE(peer >= 0 && peer < getSize() && peer != getRank(), "rank ",
                    getRank(), " of ", getSize(),
                    " cannot exchange messages with rank ", peer);
  return groups_.of(peer, [&] { return make_group(peer); });
}

EdgeGroups::Group EdgeGroups::make_group(int peer) {
  auto options = ProcessGroupGloo::Options::create(connecting_);
  options->devices.push_back(device_);
  options->threads = 1;  // for collectives, of which there are none
  const auto [low, high] = std::minmax(getRank(), peer);
  auto group = c10::make_intrusive<ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>(
          std::to_string(low) + "-" + std::to_string(high), store_),
      1 - number_of(peer), 2, std::move(options));
  group->setTimeout(waiting_);
  return group;
}

c10::intrusive_ptr<c10d::Work> EdgeGroups::send(
    std::vector<at::Tensor>& tensors, int to, int tag) {
  return group_with(to)->send(tensors, number_of(to), tag);
}

c10::intrusive_ptr<c10d::Work> EdgeGroups::recv(
    std::vector<at::Tensor>& tensors, int from, int tag) {
  return group_with(from)->recv(tensors, number_of(from), tag);
}

}  // namespace gpipe::internal
