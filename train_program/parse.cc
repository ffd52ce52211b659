#include "train_program/parse.h"

#include "gpipe/program/parse.h"
#include "gpipe/schedule/parse_checkpoint.h"
#include "gpipe/text/lists.h"

namespace gpipe::train_program {

std::vector<int64_t> parse_numbers(const std::string& flag,
                                   const std::string& text) {
  return with_value_error([&] { return gpipe::parse_numbers(flag, text); });
}

std::vector<c10::Device> parse_devices(const std::string& text) {
  return with_value_error([&] { return gpipe::parse_devices(text); });
}

c10::Device first_device(const std::vector<c10::Device>& devices) {
  return devices.empty() ? all_devices().front() : devices.front();
}

Checkpoint parse_checkpoint(const std::string& name) {
  return with_value_error([&] { return gpipe::parse_checkpoint(name); });
}

}  // namespace gpipe::train_program
