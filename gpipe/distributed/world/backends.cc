#include "gpipe/distributed/world/backends.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <optional>
#include <sstream>
#include <utility>

namespace gpipe::internal {
namespace {

using Names = std::map<c10::DeviceType, std::string>;

constexpr char kGloo[] = "gloo";

// The backends of this program for direct transfers.
auto& direct() {
  static auto* const backends =
      new std::map<c10::DeviceType, std::unique_ptr<DeviceTransportBackend>>();
  return *backends;
}

std::string type_name(c10::DeviceType type) {
  return c10::DeviceTypeName(type, /*lower_case=*/true);
}

std::optional<c10::DeviceType> type_of(const std::string& name) {
  try {
    const c10::Device device(name);
    if (!device.has_index()) return device.type();
  } catch (const c10::Error&) {
    // There is no such type.
  }
  return std::nullopt;
}

[[noreturn]] void refuse_backends(const std::string& text,
                                  const std::string& why) {
  std::string others, all;
  for (const auto& [type, backend] : direct()) {
    others += c10::str(", and '", backend->name(), "' between devices of type ",
                       type_name(type));
    all = c10::str(" or '", all_backends(), "'");
  }
  C10_THROW_ERROR(ValueError,
                  c10::str("WorldOptions::backend is '", text, "', but ", why,
                           "; this program has '", kGloo, "'", others,
                           ", so give '", kGloo, "'", all));
}

}  // namespace

void register_backend(c10::DeviceType type,
                      std::unique_ptr<DeviceTransportBackend> backend) {
  direct()[type] = std::move(backend);
}

const DeviceTransportBackend* backend_of(c10::DeviceType type) {
  const auto found = direct().find(type);
  return found == direct().end() ? nullptr : found->second.get();
}

Names parse_backends(const std::string& text) {
  if (text == kGloo) return {{c10::kCPU, kGloo}};
  for (const auto& [type, backend] : direct()) {
    if (text == backend->name()) return {{c10::kCPU, kGloo}, {type, text}};
  }
  Names names;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t colon = part.find(':');
    if (colon == std::string::npos) {
      refuse_backends(text, c10::str("'", part, "' cannot serve all devices"));
    }
    const auto type = type_of(part.substr(0, colon));
    const std::string name = part.substr(colon + 1);
    if (!type) {
      refuse_backends(text, c10::str("'", part, "' names no type of device"));
    }
    const DeviceTransportBackend* const backend = backend_of(*type);
    if (name != kGloo && (!backend || backend->name() != name)) {
      refuse_backends(text,
                      c10::str("there is no '", name, "' for devices of type ",
                               type_name(*type)));
    }
    if (!names.emplace(*type, name).second) {
      refuse_backends(text, c10::str("it names two backends for devices of "
                                     "type ",
                                     type_name(*type)));
    }
  }
  if (names.count(c10::kCPU) == 0) {
    refuse_backends(text, "it names none for the CPU, on which ranks agree");
  }
  return names;
}

std::string all_backends() {
  if (direct().empty()) return kGloo;
  std::string all = c10::str("cpu:", kGloo);
  for (const auto& [type, backend] : direct()) {
    all += c10::str(",", type_name(type), ":", backend->name());
  }
  return all;
}

bool names_direct_transfers(const std::string& text) {
  for (const auto& [type, name] : parse_backends(text)) {
    if (name != kGloo) return true;
  }
  return false;
}

}  // namespace gpipe::internal
