#include "gpipe/distributed/channel/schedule_texts.h"

#include <c10/util/Exception.h>

#include <exception>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "gpipe/schedule/difference.h"
#include "gpipe/schedule/text.h"

namespace gpipe::internal {
namespace {

std::string key_of(uint32_t checksum) {
  return "gpipe/schedule/" + std::to_string(checksum);
}

// Returns the difference of two schedules, or "" if it is not known.
std::string difference(World& world, int peer, uint32_t theirs, uint32_t ours) {
  try {
    const std::vector<std::string> keys{key_of(theirs), key_of(ours)};
    // get() would wait for a missing key.
    if (!world.store().check(keys)) return "";
    const auto read = [&](const std::string& key) {
      const std::vector<uint8_t> bytes = world.store().get(key);
      return parse_schedule(std::string(bytes.begin(), bytes.end()));
    };
    const auto name = [](int rank) {
      return "the schedule of rank " + std::to_string(rank);
    };
    return describe_difference(read(keys[0]), name(peer), read(keys[1]),
                               name(world.rank()));
  } catch (const std::exception&) {
    return "";
  }
}

}  // namespace

void publish_schedule(World& world, uint32_t checksum,
                      const std::string& text) {
  if (world.size() == 1) return;
  try {
    const std::vector<uint8_t> bytes(text.begin(), text.end());
    world.store().set(key_of(checksum), bytes);
  } catch (const std::exception&) {
    // The text serves an error text alone.
  }
}

void check_schedule_of(World& world, int peer, const MessageId& got,
                       const MessageId& expected) {
  if (got.step != expected.step || got.schedule == expected.schedule) return;
  const std::string text =
      difference(world, peer, got.schedule, expected.schedule);
  TORCH_CHECK(text.empty(), "the ranks run different schedules: ", text,
              "; give all ranks the same schedule and checkpoint mode");
}

}  // namespace gpipe::internal
