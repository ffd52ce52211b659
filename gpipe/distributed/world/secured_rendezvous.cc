#include "gpipe/distributed/world/secured_rendezvous.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "gpipe/distributed/links/connect.h"
#include "gpipe/distributed/links/link_error.h"
#include "gpipe/distributed/world/secured_store.h"
#include "gpipe/distributed/world/store_text.h"
#include "gpipe/processes/descriptor.h"

namespace gpipe::internal {
std::string own_address(const WorldOptions& options) {
  if (!options.own_address.empty()) return options.own_address;
  try {
    return address_towards(options.address, options.port);
  } catch (const LinkError& error) {
    C10_THROW_ERROR(
        DistNetworkError,
        std::string(error.what()) +
            "; name this machine's address in WorldOptions::own_address");
  }
}

c10::intrusive_ptr<c10d::Store> tcp_store(
    const WorldOptions& options, int listening,
    std::chrono::steady_clock::time_point deadline) {
  c10d::TCPStoreOptions store;
  store.port = static_cast<uint16_t>(options.port);
  store.isServer = listening >= 0;
  store.waitWorkers = false;
  store.timeout =
      std::max(std::chrono::duration_cast<std::chrono::milliseconds>(
                   deadline - std::chrono::steady_clock::now()),
               std::chrono::milliseconds(1));
  if (listening >= 0) store.masterListenFd = listening;
  return c10::make_intrusive<c10d::TCPStore>(options.address, store);
}

c10::intrusive_ptr<c10d::Store> SecuredRendezvous::serve(int listening) {
  server_ = std::make_shared<StoreServer>(Descriptor(listening), credentials_,
                                          refusals_);
  return secured_store([server = server_](const StoreRequest& request) {
    return server->call(request);
  });
}

c10::intrusive_ptr<c10d::Store> SecuredRendezvous::connect(
    int rank, const std::string& address, int port, TimePoint deadline) {
  const auto client = std::make_shared<StoreClient>(
      connect_to(address, port, *credentials_, Hello{rank, 0, 0}, deadline),
      credentials_);
  return secured_store(
      [client](const StoreRequest& request) { return client->call(request); });
}

c10::intrusive_ptr<c10d::Store> SecuredRendezvous::store(
    const WorldOptions& options, int listening, TimePoint deadline) {
  if (listening >= 0) return serve(listening);
  return connect(options.rank, options.address, options.port, deadline);
}

c10::intrusive_ptr<c10d::Store> SecuredRendezvous::store_beside(
    const WorldOptions& options, int listening, TimePoint deadline,
    c10d::Store& launchers, int64_t start) {
  const std::string key =
      "gpipe/secured/" + options.session + "/place/" + std::to_string(start);
  if (listening >= 0) {
    Descriptor socket(listening);
    const std::string place =
        own_address(options) + " " + std::to_string(port_of(socket));
    auto store = serve(socket.release());
    launchers.set(key, bytes_of(place));
    return store;
  }
  std::istringstream place(text_of(launchers.get(key)));
  std::string address;
  int port = 0;
  place >> address >> port;
  return connect(options.rank, address, port, deadline);
}

void SecuredRendezvous::stop_listening() {
  if (server_) server_->stop_listening();
}

}  // namespace gpipe::internal
