// The part of the rendezvous in which a world with a secret or with
// certificates differs.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/refusals.h"
#include "gpipe/distributed/links/store_server.h"
#include "gpipe/distributed/world/world_options.h"

namespace gpipe::internal {

// Returns `own_address` of the options, or else the address from which the
// system reaches the store. Throws c10::DistNetworkError if there is none.
std::string own_address(const WorldOptions& options);

// Returns LibTorch's store at the place in `options`: the server if `listening`
// is a socket (which it takes), or a client.
c10::intrusive_ptr<c10d::Store> tcp_store(
    const WorldOptions& options, int listening,
    std::chrono::steady_clock::time_point deadline);

class SecuredRendezvous {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `credentials`: with a secret or certificates.
  SecuredRendezvous(std::shared_ptr<const Credentials> credentials,
                    std::shared_ptr<Refusals> refusals)
      : credentials_(std::move(credentials)), refusals_(std::move(refusals)) {}

  // Returns the store. Rank 0 serves it on `listening`; the others connect to
  // rank 0 at the place in `options`. Throws LinkError or c10::DistError.
  c10::intrusive_ptr<c10d::Store> store(const WorldOptions& options,
                                        int listening, TimePoint deadline);

  // The same if a launcher has a store (torchrun): rank 0 writes there where it
  // listens. Nothing but that and the number of the start (starts.h) is read
  // from the launcher's store: it is open to strangers, who could only lead a
  // rank to a place that cannot prove that it belongs to the world.
  c10::intrusive_ptr<c10d::Store> store_beside(const WorldOptions& options,
                                               int listening,
                                               TimePoint deadline,
                                               c10d::Store& launchers,
                                               int64_t start);

  // Closes the port of the store, if this rank serves it.
  void stop_listening();

 private:
  c10::intrusive_ptr<c10d::Store> serve(int listening);
  c10::intrusive_ptr<c10d::Store> connect(int rank, const std::string& address,
                                          int port, TimePoint deadline);

  const std::shared_ptr<const Credentials> credentials_;
  const std::shared_ptr<Refusals> refusals_;
  std::shared_ptr<StoreServer> server_;
};

}  // namespace gpipe::internal
