#include "train_program/offload_option.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <system_error>
#include <utility>

namespace gpipe::train_program {

std::optional<int> offload_distance(const std::string& offload,
                                    bool accelerators) {
  constexpr int kAuto = 2;
  if (offload == "none") return std::nullopt;
  if (offload == "auto") {
    return accelerators ? std::optional(kAuto) : std::nullopt;
  }
  int number = 0;
  const char* const end = offload.data() + offload.size();
  const auto [stop, error] = std::from_chars(offload.data(), end, number);
  TORCH_CHECK_VALUE(error == std::errc() && stop == end && number >= 0,
                    "--offload=", offload,
                    ": must be none, auto, or a number of actions >= 0");
  return number;
}

Schedule with_offload_option(Schedule schedule, const std::string& offload,
                             bool accelerators) {
  const auto distance = offload_distance(offload, accelerators);
  if (!distance) return schedule;
  auto which = distant_cells(schedule, *distance);
  return with_offload(std::move(schedule), which);
}

}  // namespace gpipe::train_program
