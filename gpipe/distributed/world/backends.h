// The names of c10d's backends between ranks, by type of device.
#pragma once

#include <c10/core/DeviceType.h>

#include <map>
#include <string>

namespace gpipe::internal {

// Declares that this program can transfer directly between devices of `type`
// with the backend `name`. Not thread-safe.
void add_backend(c10::DeviceType type, const std::string& name);

// Returns the backends that `text` names: "gloo", or one for each type of
// device, such as "cpu:gloo,cuda:nccl". Throws c10::ValueError, which lists
// those of this program, if there is no such backend.
std::map<c10::DeviceType, std::string> parse_backends(const std::string& text);

// Returns whether a backend of `text`, which is valid, transfers directly
// between accelerators.
bool names_direct_transfers(const std::string& text);

}  // namespace gpipe::internal
