// Direct transfers between simulated accelerators of several processes. Linking
// this library registers them.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "gpipe/testing/simulated/simulated.h"

namespace gpipe::testing {

// The errors that a direct transport of this process can have.
enum class Defect {
  kNone,
  kWrongBytes,     // a received byte differs from the sent one
  kOneDirection,   // the second communicator of a process never connects
  kNeedsHost,      // a transfer proceeds only while the host asks for its end
  kKeepsReceives,  // an abort does not end a receive
};
// Sets the defect of communicators. Not thread-safe; call it before any
// transfer.
void set_defect(Defect defect);

// Sets whether two ranks may have one device, which is refused otherwise. Not
// thread-safe; call it before any transfer.
void set_shares_devices(bool shares);

// Sets a function that each communicator calls when it begins to connect, which
// it does in its first transfer. It may throw or end the process. Not
// thread-safe; call it before any transfer.
void set_on_connect(std::function<void()> function);

// Waits for all devices. Throws if there were races between their streams.
inline void check_no_races() {
  simulated::synchronize();
  for (const std::string& race : simulated::take_races()) {
    throw std::runtime_error(race);
  }
}

}  // namespace gpipe::testing
