// Public: what a step throws when another process is the reason.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

namespace gpipe {

// How a rank came to end the step of all.
enum class Fault {
  kFailed,    // something threw there: a layer, the loss, a check
  kDied,      // its connections were closed
  kFrozen,    // it is there, but has not been heard of
  kTimeout,   // what was waited for did not come in time
  kDisagree,  // it runs something else: another model, balance, schedule, size
  kLeft,      // it has ended in good order, while others still waited for it
};

// "has failed", "has died", ...
const char* to_string(Fault fault);

// The first failure that a rank has heard of. It is the same event on all
// ranks: whoever notices it first tells the others.
struct RankFailure {
  Fault fault = Fault::kFailed;
  // Counted in the world. The one at fault, and the one that noticed.
  int rank = 0, reporter = 0;
  // What was going on at the reporter: "stage 1, micro-batch 3, waiting for the
  // output of stage 0 from rank 0", or where in its own work it failed.
  std::string action;
  std::string what;  // the cause, in the words of whatever threw

  // "rank 2 has died (connection closed by peer), noticed by rank 1: ..."
  std::string to_string() const;
};

// Thrown on every rank but the one whose own exception is the cause, which
// keeps that. The world is of no use after it: leave, or make a new one.
class PeerError : public c10::DistError {
 public:
  PeerError(c10::SourceLocation location, RankFailure failure,
            const std::string& text)
      : c10::DistError(location, text), failure_(std::move(failure)) {}

  // Who, what and where.
  const RankFailure& failure() const { return failure_; }

 private:
  RankFailure failure_;
};

}  // namespace gpipe
