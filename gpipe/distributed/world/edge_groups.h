// Connections of one rank with only those ranks with which it exchanges
// something.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "gpipe/distributed/links/first_use.h"

namespace gpipe::internal {

// A c10d backend with send() and recv() that has a Gloo group of two for each
// pair of ranks that uses it. A group of all ranks would connect each rank with
// all others. (Gloo can also connect lazily, but in the versions of LibTorch
// 2.15 and before, the end of such a group may wait for ever.)
//
// The first send to or receive from a rank blocks until that rank also sends to
// or receives from this one, at most for the timeout; use reach() (reach.h)
// where all ranks are known to come. Thread-safe.
class EdgeGroups final : public c10d::Backend {
 public:
  // `store`: for the addresses, with a prefix for this group.
  // `address`: this machine's, at which the others connect.
  // `connecting`: the timeout of a connection. `waiting`: of sends and
  // receives.
  EdgeGroups(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
             const std::string& address, std::chrono::milliseconds connecting,
             std::chrono::milliseconds waiting);
  ~EdgeGroups() override;

  const std::string getBackendName() const override { return "gpipe-edges"; }

  // Errors and results are those of c10d::ProcessGroupGloo.
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors,
                                      int from, int tag) override;

 private:
  using Group = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

  Group group_with(int peer);
  Group make_group(int peer);
  // Returns the number of `peer` in its group of two with this rank.
  int number_of(int peer) const { return peer > getRank() ? 1 : 0; }

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::chrono::milliseconds connecting_, waiting_;
  const std::shared_ptr<::gloo::transport::Device> device_;
  FirstUse<Group> groups_;  // by peer
};

}  // namespace gpipe::internal
