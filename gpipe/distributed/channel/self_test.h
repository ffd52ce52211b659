// The self-test of direct transfers between two ranks.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gpipe/distributed/world/backends.h"

namespace gpipe::internal {

// One end of the self-test of two ranks. It uses the store and the two devices,
// and no message of the world, so that its failure does not end the world.
class SelfTest {
 public:
  // `store`: used by these two ranks only. Its waits must end once `stopped` is
  // set. `rank`: 0 or 1; the other end has the other one.
  SelfTest(const DeviceTransportBackend& backend,
           c10::intrusive_ptr<c10d::Store> store,
           std::shared_ptr<std::atomic<bool>> stopped, int rank,
           const c10::Device& device);

  // Drops both ends of the connections, which ends transfers that still run.
  // Blocks until they have ended, at most for some seconds. Call it when the
  // other rank has ended its run(), too.
  ~SelfTest();
  SelfTest(const SelfTest&) = delete;
  SelfTest& operator=(const SelfTest&) = delete;

  // Runs three checks: transfers in both directions at once; transfers while
  // the host waits for the whole device; a receive that is aborted. Returns
  // which one has failed and why, or an empty text. Blocks at most for `limit`
  // and some seconds, and ends early once `failed` is set.
  std::string run(std::chrono::milliseconds limit,
                  const std::atomic<bool>& failed);

 private:
  class Run;
  const std::shared_ptr<Run> run_;
};

}  // namespace gpipe::internal
