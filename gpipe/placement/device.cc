#include "gpipe/placement/device.h"

#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <optional>
#include <vector>

#include "gpipe/placement/names.h"

namespace gpipe {
namespace {

std::vector<std::string> type_names() {
  std::vector<std::string> names;
  for (int type = 0; type < c10::COMPILE_TIME_MAX_DEVICE_TYPES; ++type) {
    const auto each = static_cast<c10::DeviceType>(type);
    if (!c10::isValidDeviceType(each)) continue;
    names.push_back(c10::DeviceTypeName(each, /*lower_case=*/true));
  }
  return names;
}

std::optional<c10::DeviceType> type_named(const std::string& name) {
  for (int type = 0; type < c10::COMPILE_TIME_MAX_DEVICE_TYPES; ++type) {
    const auto each = static_cast<c10::DeviceType>(type);
    if (!c10::isValidDeviceType(each)) continue;
    if (c10::DeviceTypeName(each, /*lower_case=*/true) == name) return each;
  }
  return std::nullopt;
}

// Returns whether the type has devices with indices.
bool is_counted(c10::DeviceType type) {
  return type != c10::kCPU && type != c10::kMeta;
}

int count_of(c10::DeviceType type) {
  if (type == c10::kCPU) return 1;
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return c10::impl::getDeviceGuardImpl(type)->deviceCount();
}

void check_index(c10::DeviceType type, int index, int count) {
  if (type == c10::kMeta || count == 0) return;
  const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
  TORCH_CHECK_VALUE(index < count, "there is no device ", name, ":", index,
                    ": the last one of this type is ", name, ":", count - 1);
}

std::string types_here() {
  std::string text;
  for (const std::string& name : type_names()) {
    if (count_of(*type_named(name)) > 0) text += " '" + name + "'";
  }
  return text;
}

}  // namespace

c10::Device get_device(const std::string& name) {
  const std::size_t colon = name.find(':');
  const std::string type_name = name.substr(0, colon);
  const auto type = type_named(type_name);
  TORCH_CHECK_VALUE(type, "unknown type of device '", type_name, "'",
                    type_name == name ? "" : " in '" + name + "'",
                    "; the nearest that LibTorch knows are ",
                    placement::nearest_text(type_name, type_names()),
                    "; this process has devices of", types_here());
  if (colon == std::string::npos) return c10::Device(*type);

  const std::string digits = name.substr(colon + 1);
  // c10::DeviceIndex is a signed char, so 127 is the largest index.
  int index = 0;
  bool is_number = !digits.empty() && digits.size() <= 3;
  for (const char c : digits) {
    is_number = is_number && c >= '0' && c <= '9';
    if (is_number) index = 10 * index + (c - '0');
  }
  TORCH_CHECK_VALUE(is_number && index <= 127, "the device '", name,
                    "' has the index '", digits,
                    "', which must be a number from 0 to 127, as in '",
                    type_name, ":0'");
  check_index(*type, index, count_of(*type));
  return c10::Device(*type, static_cast<c10::DeviceIndex>(index));
}

c10::Device get_device(c10::Device device) {
  check_index(device.type(), device.index(), count_of(device.type()));
  return device;
}

c10::Device placement::existing_device(c10::Device device) {
  if (device.is_meta()) return device;
  const int count = count_of(device.type());
  TORCH_CHECK_VALUE(count > 0, "there is no device ", device,
                    ": this process has none of its type");
  check_index(device.type(), device.index(), count);
  if (!is_counted(device.type())) return c10::Device(device.type());
  if (device.has_index()) return device;
  return c10::impl::getDeviceGuardImpl(device.type())->getDevice();
}

}  // namespace gpipe
