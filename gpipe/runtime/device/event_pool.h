// Events of accelerators that are used again.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <memory>

namespace gpipe::internal {

// Records an event on the current stream of `device` on this thread, and
// returns it. It is taken from a pool, to which it goes back with its last
// reference: a step needs several events for each action, and to make and
// destroy one takes longer than to record it.
//
// `device`: must have streams. `timed`: whether the event has a time. Throws
// c10::Error if the device has failed. Thread-safe.
std::shared_ptr<c10::Event> record_event(const c10::Device& device, bool timed);

}  // namespace gpipe::internal
