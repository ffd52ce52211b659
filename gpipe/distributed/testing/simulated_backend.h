// Direct transfers between simulated accelerators of several processes. Linking
// this library registers them.
#pragma once

#include <functional>

namespace gpipe::testing {

// Sets a function that each communicator calls when it begins to connect, which
// it does in its first transfer. It may throw or end the process. Not
// thread-safe; call it before any transfer.
void set_on_connect(std::function<void()> function);

}  // namespace gpipe::testing
