#include "train_program/parse.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace gpipe::train_program {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

std::vector<int64_t> parse_numbers(const std::string& flag,
                                   const std::string& text) {
  std::vector<int64_t> numbers;
  for (const std::string& part : split(text)) {
    int64_t number = 0;
    const char* const end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(part.data(), end, number);
    TORCH_CHECK_VALUE(error == std::errc() && stop == end, "--", flag, "=",
                      text, ": '", part, "' is not a whole number");
    numbers.push_back(number);
  }
  return numbers;
}

std::string text_of(const std::vector<int64_t>& numbers) {
  return c10::Join(",", numbers);
}

namespace {

// Returns the devices of this machine: "cpu", "cuda:0", ...
std::vector<std::string> device_names() {
  std::vector<std::string> names{"cpu"};
  const auto accelerator = at::getAccelerator();
  const int count = accelerator ? at::accelerator::deviceCount() : 0;
  for (int k = 0; k < count; ++k) {
    names.push_back(
        c10::Device(*accelerator, static_cast<c10::DeviceIndex>(k)).str());
  }
  return names;
}

}  // namespace

std::vector<c10::Device> parse_devices(const std::string& text) {
  const std::vector<std::string> names = device_names();
  std::vector<c10::Device> devices;
  for (const std::string& part : split(text)) {
    const bool there = std::count(names.begin(), names.end(), part) +
                           std::count(names.begin(), names.end(), part + ":0") >
                       0;
    TORCH_CHECK_VALUE(there, "--devices=", text, ": this machine has no '",
                      part, "'; it has ", c10::Join(", ", names));
    devices.emplace_back(part);
  }
  return devices;
}

c10::Device first_device(const std::vector<c10::Device>& devices) {
  if (!devices.empty()) return devices.front();
  const auto accelerator = at::getAccelerator();
  const bool there = accelerator && at::accelerator::deviceCount() > 0;
  return there ? c10::Device(*accelerator, 0) : c10::Device(c10::kCPU);
}

Checkpoint parse_checkpoint(const std::string& name) {
  for (const Checkpoint mode :
       {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
    if (name == to_string(mode)) return mode;
  }
  TORCH_CHECK_VALUE(false, "--checkpoint=", name,
                    ": must be never, except_last or always");
}

}  // namespace gpipe::train_program
