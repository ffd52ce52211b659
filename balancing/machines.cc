#include "balancing/machines.h"

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "balancing/profile/json_reader.h"
#include "gpipe/base/read_file.h"

namespace gpipe::balancing {
namespace {

using detail::Json;
using detail::JsonReader;

constexpr char kFormat[] = "gpipe machines 1";
constexpr char kDocument[] = "a description of machines";
// The deepest nesting is {"hosts": [{"devices": [{"type": ...}]}]}.
constexpr int kDepth = 5;
constexpr int64_t kMostDevices = 1024;
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

class MachinesReader {
 public:
  MachinesReader(const std::string& text, const std::string& source)
      : source_(source) {
    const Json json = detail::parse_json(text, source, kDepth, kDocument);
    JsonReader reader(json, source, kDocument);
    reader.check_format(kFormat);
    between_hosts_ = link_of(reader);
    reader.each("hosts", "host", [&](JsonReader& host) { read_host(host); });
    reader.each("links", "link", [&](JsonReader& link) { read_link(link); });
    reader.end();
    TORCH_CHECK_VALUE(!places_.empty(), source, ": there are no devices");
  }

  Machines machines() const {
    Machines result;
    for (const Place& place : places_) result.devices.push_back(place.device);
    for (const Place& from : places_) {
      for (const Place& to : places_) {
        result.links.push_back(link_between(from, to));
      }
    }
    return result;
  }

 private:
  // A device, and the host that it is in.
  struct Place {
    PlanDevice device;
    std::size_t name = 0;  // of hosts_
    int64_t host = 0;      // over all hosts
  };
  struct Host {
    std::string name;
    PlanLink inside;
  };

  static PlanLink link_of(JsonReader& reader) {
    PlanLink link;
    link.latency = reader.seconds("latency_seconds");
    link.bandwidth = 1e9 * reader.positive("bandwidth_gb", kUnlimited);
    return link;
  }

  void read_host(JsonReader& reader) {
    Host host;
    host.name = reader.text("name");
    for (const Host& other : hosts_) {
      TORCH_CHECK_VALUE(other.name != host.name, source_,
                        ": two hosts are called '", host.name,
                        "'; give equal ones a \"count\"");
    }
    host.inside = link_of(reader);
    const int64_t count = reader.count("count", kMostDevices, 1);
    std::vector<PlanDevice> devices;
    reader.each("devices", "device",
                [&](JsonReader& device) { read_device(device, devices); });
    for (int64_t k = 0; k < count; ++k, ++host_count_) {
      for (const PlanDevice& device : devices) {
        places_.push_back({device, hosts_.size(), host_count_});
      }
      TORCH_CHECK_VALUE(std::ssize(places_) <= kMostDevices, source_,
                        ": has more than ", kMostDevices, " devices");
    }
    hosts_.push_back(std::move(host));
  }

  static void read_device(JsonReader& reader,
                          std::vector<PlanDevice>& devices) {
    const std::string type = reader.find("type") ? reader.text("type") : "cuda";
    const c10::DeviceType device = [&] {
      try {
        return torch::Device(type).type();
      } catch (const c10::Error&) {
        TORCH_CHECK_VALUE(false, reader.place(), ": \"type\" is \"", type,
                          "\", but should be cpu, cuda, xpu, ...");
      }
    }();
    const double speed = reader.positive("speed", 1);
    const double gib = reader.positive("memory_gib", kUnlimited);
    const double host_gb = reader.positive("host_bandwidth_gb", kUnlimited);
    const int64_t count = reader.count("count", kMostDevices, 1);
    for (int64_t k = 0; k < count; ++k) {
      constexpr double kGib = 1024.0 * 1024 * 1024;
      // The number of a device is that in its host; LibTorch has up to 128.
      const auto index = static_cast<c10::DeviceIndex>(
          std::min<std::size_t>(devices.size(), 127));
      devices.push_back(PlanDevice(device == torch::kCPU
                                       ? torch::Device(device)
                                       : torch::Device(device, index))
                            .speed(speed)
                            .memory_bytes(usable_memory(device, kGib * gib))
                            .host_bandwidth(1e9 * host_gb));
    }
  }

  std::size_t host(const Json& name, const std::string& place) const {
    for (std::size_t k = 0; k < hosts_.size(); ++k) {
      if (name == hosts_[k].name) return k;
    }
    TORCH_CHECK_VALUE(false, place, ": there is no host ", name.dump());
  }

  void read_link(JsonReader& reader) {
    const std::string& place = reader.place();
    const Json names = reader.list("hosts");
    TORCH_CHECK_VALUE(names.size() == 2, place, ": \"hosts\" has ",
                      names.size(), " names, but should have 2");
    const std::size_t a = host(names[0], place), b = host(names[1], place);
    links_[{std::min(a, b), std::max(a, b)}] = link_of(reader);
  }

  PlanLink link_between(const Place& from, const Place& to) const {
    if (from.host == to.host) return hosts_[from.name].inside;
    const auto found = links_.find(
        {std::min(from.name, to.name), std::max(from.name, to.name)});
    return found == links_.end() ? between_hosts_ : found->second;
  }

  const std::string source_;
  std::vector<Host> hosts_;
  std::vector<Place> places_;
  std::map<std::pair<std::size_t, std::size_t>, PlanLink> links_;
  PlanLink between_hosts_;
  int64_t host_count_ = 0;
};

}  // namespace

Machines machines_from_json(const std::string& text,
                            const std::string& source) {
  return MachinesReader(text, source).machines();
}

Machines read_machines(const std::string& path) {
  return machines_from_json(gpipe::internal::read_file(path), path);
}

}  // namespace gpipe::balancing
