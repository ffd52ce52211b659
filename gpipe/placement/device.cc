#include "gpipe/placement/device.h"

#include <absl/strings/ascii.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"

namespace gpipe::placement {

std::string nearest_text(const std::string& name,
                         const std::vector<std::string>& names) {
  const std::string wanted = absl::AsciiStrToLower(name);
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (const std::string& each : names) {
    ranked.emplace_back(edit_distance(wanted, absl::AsciiStrToLower(each)),
                        each);
  }
  std::ranges::stable_sort(ranked, {}, [](auto& each) { return each.first; });
  ranked.resize(std::min<std::size_t>(3, ranked.size()));
  std::string text;
  for (std::size_t k = 0; k < ranked.size(); ++k) {
    if (k > 0) text += k + 1 == ranked.size() ? " and " : ", ";
    text += "'" + ranked[k].second + "'";
  }
  return text;
}

}  // namespace gpipe::placement

namespace gpipe {
namespace {

// A type of device, and its name in lower case.
struct Type {
  c10::DeviceType type;
  std::string name;
};

// Returns the types that LibTorch knows.
std::vector<Type> known_types() {
  std::vector<Type> types;
  for (int k = 0; k < c10::COMPILE_TIME_MAX_DEVICE_TYPES; ++k) {
    const auto type = static_cast<c10::DeviceType>(k);
    if (!c10::isValidDeviceType(type)) continue;
    types.push_back({type, c10::DeviceTypeName(type, /*lower_case=*/true)});
  }
  return types;
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
  if (type == c10::kMeta || index < 0) return;
  const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
  TORCH_CHECK_VALUE(
      index < count, "there is no device ", name, ":", index, ": ",
      count == 0
          ? "this process has none of its type"
          : c10::str("the last one of this type is ", name, ":", count - 1));
}

[[noreturn]] void refuse_type(const std::string& name,
                              const std::string& type_name,
                              const std::vector<Type>& types) {
  std::vector<std::string> names;
  std::string here;
  for (const Type& each : types) {
    names.push_back(each.name);
    if (count_of(each.type) > 0) here += " '" + each.name + "'";
  }
  TORCH_CHECK_VALUE(false, "unknown type of device '", type_name, "'",
                    type_name == name ? "" : " in '" + name + "'",
                    "; the nearest that LibTorch knows are ",
                    placement::nearest_text(type_name, names),
                    "; this process has devices of", here);
}

}  // namespace

c10::Device get_device(const std::string& name) {
  const std::size_t colon = name.find(':');
  const std::string type_name = name.substr(0, colon);
  const std::vector<Type> types = known_types();
  const auto found = std::ranges::find_if(
      types, [&](const Type& each) { return each.name == type_name; });
  if (found == types.end()) refuse_type(name, type_name, types);
  if (colon == std::string::npos) return c10::Device(found->type);

  const std::string digits = name.substr(colon + 1);
  const auto index = internal::read_number<c10::DeviceIndex>(digits);
  // "-0" is a number, too.
  TORCH_CHECK_VALUE(index && digits.front() != '-', "the device '", name,
                    "' has the index '", digits,
                    "', which must be a number from 0 to 127, as in '",
                    type_name, ":0'");
  check_index(found->type, *index, count_of(found->type));
  return c10::Device(found->type, *index);
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
