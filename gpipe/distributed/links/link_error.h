// The exception of secured connections.
#pragma once

#include <stdexcept>
#include <string>

namespace gpipe::internal {

// A connection that cannot be made, or that is broken.
class LinkError : public std::runtime_error {
 public:
  enum class Cause {
    kNetwork,  // the other end is not reachable, or has closed the connection
    kRefused,  // one end has not proved that it belongs to the world
  };

  LinkError(Cause cause, const std::string& what)
      : std::runtime_error(what), cause_(cause) {}

  Cause cause() const { return cause_; }

 private:
  Cause cause_;
};

}  // namespace gpipe::internal
