// The schedules that the ranks run, for messages about their differences.
#pragma once

#include <cstdint>
#include <string>

#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/world/world.h"

namespace gpipe::internal {

// Stores `text`, a schedule as to_csv() writes it, so that all ranks can find
// the text by its checksum (MessageId::schedule). Does nothing if the store
// fails.
void publish_schedule(World& world, uint32_t checksum, const std::string& text);

// Throws c10::Error if `got`, the id of a message from rank `peer`, is of the
// step of `expected`, but of another schedule. The error names the first
// difference, if the texts of both schedules are stored.
void check_schedule_of(World& world, int peer, const MessageId& got,
                       const MessageId& expected);

}  // namespace gpipe::internal
