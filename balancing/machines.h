// A JSON description of machines for plan(): devices, hosts and links.
#pragma once

#include <string>
#include <vector>

#include "balancing/plan.h"

namespace gpipe::balancing {

// The devices of some machines, with the link of each pair.
struct Machines {
  std::vector<PlanDevice> devices;
  std::vector<PlanLink> links;  // for PlanOptions::links()
};

// Parses a description of machines:
//
//   {"format": "gpipe machines 1",
//    "hosts": [
//      {"name": "a", "count": 2, "latency_seconds": 5e-6, "bandwidth_gb": 300,
//       "devices": [{"type": "cuda", "count": 8, "speed": 2.5,
//                    "memory_gib": 80, "host_bandwidth_gb": 25}]},
//      {"name": "b", "devices": [{"type": "cuda", "count": 4}]}],
//    "latency_seconds": 2e-5, "bandwidth_gb": 25,
//    "links": [{"hosts": ["a", "b"], "bandwidth_gb": 12}]}
//
// A device is `speed` times as fast as the one that the profile was measured
// on. "latency_seconds" and "bandwidth_gb" (10^9 bytes per second, each way)
// of a host are those between its devices, and the outer ones those between
// hosts, unless "links" has the two hosts. `count` hosts of one name are that
// many equal machines; the links of a name with itself are between them. A
// missing "count" or "speed" is 1, a missing "type" is "cuda", a missing
// latency 0, and a missing memory or bandwidth is unlimited. "memory_gib" is
// the memory of the device in units of 2^30 bytes; see usable_memory(). If
// "links" has two hosts twice, the last entry counts. Plans for CPUs assume the
// cores of this machine for all of them, unless PlanOptions::workers is set.
//
// Devices are in the order of the description: neighbours exchange most. The
// index of an accelerator is its number on its host.
//
// `source`: the name of the text in error messages, for example the file's
// path.
//
// Throws c10::ValueError if `text` is not JSON (with line and column), if its
// format is a different one, if a member is unknown or out of its range, if a
// link names an unknown host, if two hosts have one name, or unless there are 1
// to 1024 devices.
// Threads: pure function.
Machines machines_from_json(const std::string& text, const std::string& source);

// Reads a description from a file. Throws c10::ValueError also if `path` cannot
// be read. Threads: several threads may call this at once.
Machines read_machines(const std::string& path);

}  // namespace gpipe::balancing
