// Certificates for tests, made when they are needed.
#pragma once

#include <memory>
#include <string>

#include "gpipe/distributed/links/credentials.h"

namespace gpipe::testing {

// An authority of its own, with its files in a new folder, which is deleted
// with the object.
class Authority {
 public:
  Authority();
  ~Authority();
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  // Returns the files of a new certificate of this authority, with its key.
  // `days`: how long it is valid from now on; negative: it has expired.
  internal::Identity identity(const std::string& name, int days = 1);

  // Returns the file of the authority's own certificate.
  const std::string& file() const;
  const std::string& folder() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gpipe::testing
