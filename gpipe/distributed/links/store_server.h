// A store of keys and values on rank 0, for the other ranks. No LibTorch.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/greeter.h"
#include "gpipe/distributed/links/refusals.h"
#include "gpipe/distributed/links/socket.h"
#include "gpipe/distributed/links/store_wire.h"
#include "gpipe/processes/descriptor.h"

namespace gpipe::internal {

// The server. Answers requests of connections that have proved that they belong
// to the world, on one thread. Thread-safe.
class StoreServer {
 public:
  // `listening`: a TCP socket that listens.
  StoreServer(Descriptor listening,
              std::shared_ptr<const Credentials> credentials,
              std::shared_ptr<Refusals> refusals);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Answers a request of this process.
  StoreReply call(const StoreRequest& request);

  // Closes the port. The connections that are there go on.
  void stop_listening();

 private:
  struct Client;

  void run();
  void serve(Client& client);
  void wake();

  const std::shared_ptr<const Credentials> credentials_;
  const std::shared_ptr<Refusals> refusals_;
  Descriptor wake_;

  std::mutex mutex_;  // protects the members below
  std::unordered_map<std::string, std::string> values_;
  std::vector<std::unique_ptr<Client>> arrived_;  // for the thread
  bool is_ending_ = false;

  std::vector<std::unique_ptr<Client>> clients_;  // the thread's
  std::unique_ptr<Greeter> greeter_;
  std::thread thread_;
};

// The connection of another rank to the server. Thread-safe; calls wait for
// each other.
class StoreClient {
 public:
  // `credentials` must outlive this object.
  explicit StoreClient(Socket socket,
                       std::shared_ptr<const Credentials> credentials);

  // Blocks until the answer is there. Throws LinkError if the connection
  // breaks, or after a minute.
  StoreReply call(const StoreRequest& request);

 private:
  std::mutex mutex_;
  const std::shared_ptr<const Credentials> credentials_;
  Socket socket_;
};

}  // namespace gpipe::internal
