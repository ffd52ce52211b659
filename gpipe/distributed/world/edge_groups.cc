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

c10d::ProcessGroupGloo& EdgeGroups::group_with(int peer) {
  TORCH_CHECK_VALUE(peer >= 0 && peer < getSize() && peer != getRank(), "rank ",
                    getRank(), " of ", getSize(),
                    " cannot exchange messages with rank ", peer);
  Edge* edge = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    edge = &edges_[peer];
  }
  const std::lock_guard<std::mutex> lock(edge->mutex);
  if (!edge->group) {
    auto options = ProcessGroupGloo::Options::create(connecting_);
    options->devices.push_back(device_);
    options->threads = 1;  // for collectives, of which there are none
    const auto [low, high] = std::minmax(getRank(), peer);
    auto group = c10::make_intrusive<ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(
            std::to_string(low) + "-" + std::to_string(high), store_),
        1 - number_of(peer), 2, std::move(options));
    group->setTimeout(waiting_);
    edge->group = std::move(group);
  }
  return *edge->group;
}

c10::intrusive_ptr<c10d::Work> EdgeGroups::send(
    std::vector<at::Tensor>& tensors, int to, int tag) {
  return group_with(to).send(tensors, number_of(to), tag);
}

c10::intrusive_ptr<c10d::Work> EdgeGroups::recv(
    std::vector<at::Tensor>& tensors, int from, int tag) {
  return group_with(from).recv(tensors, number_of(from), tag);
}

int EdgeGroups::connections() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(edges_.size());
}

}  // namespace gpipe::internal
