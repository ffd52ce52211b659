#include "gpipe/runtime/run/run_ahead.h"

#include "gpipe/runtime/device/event_pool.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {

void RunAhead::wait() {
  while (under_way_.size() >= kActions) {
    under_way_.front()->synchronize();
    under_way_.pop_front();
  }
}

void RunAhead::end_action() {
  if (!has_streams(device_)) return;
  under_way_.push_back(record_event(device_, /*timed=*/false));
}

}  // namespace gpipe::internal
