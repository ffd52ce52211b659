// The exception that a step throws when another process has failed.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

namespace gpipe {

// The kinds of failure of a rank that end the step on all ranks.
enum class Fault {
  kFailed,    // a layer, the loss or a check threw an exception there
  kDied,      // its connections were closed
  kFrozen,    // its process exists, but sends no heartbeats
  kTimeout,   // it did not send what others waited for in time
  kDisagree,  // it runs another model, balance, option or size
  kLeft,      // it closed its World while others still waited for it
  kRefused,   // an argument was wrong there; the World goes on
};

// Returns the end of a sentence about a rank: "has failed", "has died", ...
const char* to_string(Fault fault);

// The first failure of the world that this rank has noticed or was told of. A
// rank that notices a failure tells the others. If several ranks notice one at
// the same time, each keeps its own report.
struct RankFailure {
  Fault fault = Fault::kFailed;
  // Ranks of the world: the one that failed, and the one that noticed it.
  int rank = 0, reporter = 0;
  // The reporter's action at that time: "stage 1, micro-batch 3, waiting for
  // the output of stage 0 from rank 0", or where in its own work it failed.
  std::string action;
  std::string what;  // the cause: the text of the exception

  // Returns one line: "rank 2 has died: connection closed by peer [noticed by
  // rank 1 in ...]".
  std::string to_string() const;
};

// The exception that every rank throws after a failure of the world, except a
// rank whose own exception is the cause: that rank throws its own exception.
// The World cannot be used any more; leave, or make a new one. An exception is
// Fault::kRefused: the call has changed nothing on any rank, and the World goes
// on.
class PeerError : public c10::DistError {
 public:
  PeerError(c10::SourceLocation location, RankFailure failure,
            const std::string& text)
      : c10::DistError(location, text), failure_(std::move(failure)) {}

  // Returns which rank failed, how and where.
  const RankFailure& failure() const { return failure_; }

 private:
  RankFailure failure_;
};

}  // namespace gpipe
