// The forms of a plan: tables of text, and JSON; and the JSON of machines.
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "balancing/machines.h"
#include "balancing/plan.h"
#include "gpipe/base/files.h"
#include "gpipe/base/json.h"
#include "gpipe/base/text.h"

namespace gpipe::balancing {

// ---- Text

namespace {

using Table = std::vector<std::vector<std::string>>;

// Returns what limits the partition: "time" if it is about as slow as the
// slowest one, "memory" if its memory is almost full, both, or nothing.
std::string bound_of(const Plan& plan, const PlannedPartition& partition) {
  double slowest = 0;
  for (const PlannedPartition& each : plan.partitions) {
    slowest = std::max(slowest, each.forward + each.backward);
  }
  constexpr double kClose = 0.95;
  std::string text;
  if (partition.forward + partition.backward >= kClose * slowest) text = "time";
  if (partition.memory_bytes >= kClose * partition.memory_limit) {
    text += text.empty() ? "memory" : ", memory";
  }
  return text;
}

std::string recompute_text(Checkpoint checkpoint, bool where_needed) {
  return where_needed ? "where_needed" : to_string(checkpoint);
}

void print_bound(std::ostream& stream, const Plan& plan,
                 const PlanBound& bound) {
  const std::string rank = std::to_string(bound.rank);
  const std::string share = percent_text(bound.share, 0);
  stream << "bound by " << to_string(bound.kind) << ": ";
  switch (bound.kind) {
    case PlanBoundKind::kCompute:
      stream << "partition " << rank << " computes for " << share
             << " of the step\n";
      break;
    case PlanBoundKind::kBubble:
      stream << "even the busiest partition, " << rank << ", waits for "
             << share << " of the step\n";
      break;
    case PlanBoundKind::kMemory:
      stream << "partition " << rank << " uses " << share
             << " of its memory, and more memory would save time\n";
      break;
    case PlanBoundKind::kLinks:
      stream << "the busiest partition, " << rank << ", waits for "
             << (plan.sum_seconds > 0 ? "copies and sums of gradients"
                                      : "copies")
             << " for " << share << " of the step\n";
      break;
  }
}

// Returns how much longer than `least` a time is: "+8.1 %".
std::string difference_text(double seconds, double least) {
  if (least <= 0) return "";
  const double part = seconds / least - 1;
  constexpr double kShown = 5e-4;  // less is 0.0 %
  return (part <= -kShown ? "-" : "+") + percent_text(std::abs(part));
}

// Returns whether a family is not faster than the same one without offload.
bool offloads_for_nothing(const Plan& plan, const PlanCandidate& family) {
  if (!family.offload) return false;
  return std::ranges::any_of(plan.families, [&](const PlanCandidate& other) {
    return !other.offload && other.schedule == family.schedule &&
           other.stages_per_rank == family.stages_per_rank &&
           other.step_seconds <= family.step_seconds;
  });
}

void print_families(std::ostream& stream, const Plan& plan) {
  stream << "the best of each schedule:\n";
  Table table = {{"schedule", "stages per rank", "micro-batches", "checkpoint",
                  "offload", "step", "longer by"}};
  for (const PlanCandidate& each : plan.families) {
    if (offloads_for_nothing(plan, each)) continue;
    table.push_back(
        {each.schedule, std::to_string(each.stages_per_rank),
         std::to_string(each.chunks),
         recompute_text(each.checkpoint, each.recompute_where_needed),
         each.offload ? "yes" : "no", seconds_text(each.step_seconds),
         difference_text(each.step_seconds, plan.step_seconds)});
  }
  stream << columns_text(table, "r");
  for (const PlanAlternative& each : plan.alternatives) {
    stream << "with " << each.change << ": " << seconds_text(each.step_seconds)
           << " (" << difference_text(each.step_seconds, plan.step_seconds)
           << ")\n";
  }
}

}  // namespace

const char* to_string(PlanBoundKind kind) {
  // In the order of PlanBoundKind.
  constexpr const char* kNames[] = {"compute", "bubble", "memory", "links"};
  return kNames[static_cast<int>(kind)];
}

std::ostream& operator<<(std::ostream& stream, const Plan& plan) {
  stream << plan.schedule_name << ", " << plan.stages_per_rank
         << (plan.stages_per_rank == 1 ? " stage" : " stages") << " per rank, "
         << plan.chunks << " micro-batches, checkpoint "
         << recompute_text(plan.checkpoint, !plan.recomputed_stages.empty())
         << (plan.offload ? ", offload" : "")
         << ": a step is predicted to take " << seconds_text(plan.step_seconds);
  if (plan.sum_seconds > 0) {
    stream << ", of which " << seconds_text(plan.sum_seconds)
           << " are for the sums of gradients";
  }
  stream << "\n";
  Table table = {{"partition", "device", "layers", "forward", "backward",
                  "memory", "of", "idle", "of the bubble", "bound by"}};
  for (const PlannedPartition& each : plan.partitions) {
    table.push_back({std::to_string(table.size() - 1), each.device.str(),
                     std::to_string(each.layers), seconds_text(each.forward),
                     seconds_text(each.backward), bytes_text(each.memory_bytes),
                     bytes_text(each.memory_limit), percent_text(each.idle, 0),
                     percent_text(each.bubble_share, 0), bound_of(plan, each)});
  }
  stream << columns_text(table, "r");

  if (plan.bound) print_bound(stream, plan, *plan.bound);
  print_families(stream, plan);
  return stream;
}

// ---- JSON of plans

namespace {

using gpipe::internal::Json;
using gpipe::internal::JsonFormat;
using gpipe::internal::JsonReader;
using gpipe::internal::read_document;

// The deepest nesting is {"ranks": [{"stages": [0]}]}.
constexpr JsonFormat kPlanFormat = {"gpipe plan 1", "a plan", 5};

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json json_of(const PlanCandidate& candidate) {
  return {{"schedule", candidate.schedule},
          {"stages_per_rank", candidate.stages_per_rank},
          {"chunks", candidate.chunks},
          {"checkpoint", recompute_text(candidate.checkpoint,
                                        candidate.recompute_where_needed)},
          {"offload", candidate.offload},
          {"step_seconds", number(candidate.step_seconds)}};
}

Json json_of(const PlannedPartition& part) {
  return {{"device", part.device.str()},
          {"stages", part.stages},
          {"layers", part.layers},
          {"forward_seconds", number(part.forward)},
          {"backward_seconds", number(part.backward)},
          {"memory_bytes", number(part.memory_bytes)},
          {"memory_limit", number(part.memory_limit)},
          {"idle", number(part.idle)}};
}

// Larger numbers would make schedules that do not fit into memory.
constexpr int64_t kMost = 1 << 20;

template <typename Result>
Result choice_of(JsonReader& reader, const std::string& name,
                 const std::map<std::string, Result>& choices) {
  const std::string text = reader.text(name);
  const auto found = choices.find(text);
  if (found != choices.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [each, result] : choices) names.push_back(each);
  TORCH_CHECK_VALUE(false, reader.place(), ": \"", name, "\" is \"", text,
                    "\", but should be one of ", c10::Join(", ", names));
}

PlanCandidate read_candidate(JsonReader& reader) {
  PlanCandidate result;
  result.schedule = reader.text("schedule");
  result.stages_per_rank = reader.count("stages_per_rank", kMost);
  result.chunks = reader.count("chunks", kMost);
  const auto mode = choice_of<std::optional<Checkpoint>>(
      reader, "checkpoint",
      {{"never", Checkpoint::kNever},
       {"except_last", Checkpoint::kExceptLast},
       {"always", Checkpoint::kAlways},
       {"where_needed", std::nullopt}});
  result.checkpoint = mode.value_or(Checkpoint::kAlways);
  result.recompute_where_needed = !mode;
  result.offload = reader.flag("offload");
  result.step_seconds = reader.number("step_seconds");
  return result;
}

PlannedPartition read_partition(JsonReader& reader) {
  PlannedPartition part;
  const std::string device = reader.text("device");
  try {
    part.device = torch::Device(device);
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, reader.place(), ": there is no device \"", device,
                      "\"");
  }
  part.stages = reader.whole_list("stages");
  part.layers = reader.whole("layers");
  part.forward = reader.number("forward_seconds");
  part.backward = reader.number("backward_seconds");
  part.memory_bytes = reader.number("memory_bytes");
  part.memory_limit = reader.number("memory_limit");
  part.idle = reader.number("idle");
  return part;
}

class PlanReader {
 public:
  PlanReader(const std::string& text, const std::string& source)
      : source_(source) {
    read_document(text, source, kPlanFormat,
                  [this](JsonReader& reader) { read(reader); });
    check();
    if (where_needed_ &&
        std::ranges::count(plan_.recomputed_stages, true) == 0) {
      // Earlier versions wrote this where nothing is recomputed.
      plan_.recomputed_stages.clear();
      plan_.checkpoint = Checkpoint::kNever;
    }
  }

  Plan take() { return std::move(plan_); }

 private:
  void read(JsonReader& reader) {
    read_choice(reader);
    reader.each("ranks", "ranks", [&](JsonReader& rank) {
      plan_.partitions.push_back(read_partition(rank));
    });
    if (const Json* bound = reader.find("bound")) {
      JsonReader members = reader.inside(*bound, "bound");
      plan_.bound.emplace();
      plan_.bound->kind =
          choice_of<PlanBoundKind>(members, "by",
                                   {{"compute", PlanBoundKind::kCompute},
                                    {"bubble", PlanBoundKind::kBubble},
                                    {"memory", PlanBoundKind::kMemory},
                                    {"links", PlanBoundKind::kLinks}});
      plan_.bound->rank = members.whole("rank");
      plan_.bound->share = members.number("share");
      members.end();
    }
    reader.each("families", "families", [&](JsonReader& family) {
      plan_.families.push_back(read_candidate(family));
    });
    reader.each("alternatives", "alternatives", [&](JsonReader& alternative) {
      plan_.alternatives.push_back(
          {alternative.text("with"), alternative.number("step_seconds")});
    });
  }

  void read_choice(JsonReader& reader) {
    const PlanCandidate choice = read_candidate(reader);
    plan_.schedule_name = choice.schedule;
    plan_.stages_per_rank = choice.stages_per_rank;
    plan_.chunks = choice.chunks;
    plan_.checkpoint = choice.checkpoint;
    plan_.offload = choice.offload;
    plan_.step_seconds = choice.step_seconds;
    plan_.sum_seconds = reader.seconds("sum_seconds");
    plan_.placement = choice_of<Placement>(
        reader, "placement",
        {{"loop", Placement::kLoop}, {"v", Placement::kV}});
    plan_.balance = reader.whole_list("balance");
    where_needed_ = choice.recompute_where_needed;
    for (const Json& each : reader.list("recomputed_stages")) {
      TORCH_CHECK_VALUE(each.is_boolean(), source_,
                        ": \"recomputed_stages\" has ", each.dump(),
                        ", but should have true and false");
      plan_.recomputed_stages.push_back(each.get<bool>());
    }
  }

  void check() const {
    const auto stages = std::ssize(plan_.balance);
    const auto ranks = std::ssize(plan_.partitions);
    TORCH_CHECK_VALUE(ranks >= 1 && stages == ranks * plan_.stages_per_rank,
                      source_, ": there are ", stages, " stages on ", ranks,
                      " ranks with ", plan_.stages_per_rank,
                      " stages per rank");
    for (const int64_t layers : plan_.balance) {
      TORCH_CHECK_VALUE(layers >= 1 && layers <= kMost, source_,
                        ": a stage has ", layers,
                        " layers, but should have 1 to ", kMost);
    }
    const std::size_t recomputed = where_needed_ ? plan_.balance.size() : 0;
    TORCH_CHECK_VALUE(plan_.recomputed_stages.size() == recomputed, source_,
                      ": \"recomputed_stages\" has ",
                      plan_.recomputed_stages.size(), " entries for ", stages,
                      " stages, but with the checkpoint mode \"",
                      recompute_text(plan_.checkpoint, where_needed_),
                      "\" it should have ", recomputed);
    constexpr int64_t kMostCells = 1 << 24;
    TORCH_CHECK_VALUE(stages * plan_.chunks <= kMostCells, source_, ": ",
                      stages, " stages with ", plan_.chunks,
                      " micro-batches are too many; their product must be at "
                      "most ",
                      kMostCells);
    try {
      const auto fixed = fixed_stages_per_rank(plan_.schedule_name);
      TORCH_CHECK_VALUE(
          fixed.value_or(plan_.stages_per_rank) == plan_.stages_per_rank &&
              plan_.schedule_name != "forward-only",
          source_, ": ", plan_.schedule_name, " with ", plan_.stages_per_rank,
          " stages per rank is no schedule that trains");
      // With one rank, both placements are the same.
      const bool is_v =
          ranks > 1 &&
          gpipe::rank_of_stage(
              named_schedule(plan_.schedule_name, /*ranks=*/2,
                             /*microbatches=*/1,
                             static_cast<int>(plan_.stages_per_rank)))
                  .back() == 0;
      TORCH_CHECK_VALUE(ranks == 1 || plan_.stages_per_rank == 1 ||
                            is_v == (plan_.placement == Placement::kV),
                        source_, ": \"placement\" should be \"",
                        is_v ? "v" : "loop", "\" for ", plan_.schedule_name);
    } catch (const std::invalid_argument& error) {
      TORCH_CHECK_VALUE(false, source_, ": ", error.what());
    }
    check_ranks();
  }

  // Checks the stages and layers of each rank, unless they are left out.
  void check_ranks() const {
    const auto ranks = std::ssize(plan_.partitions);
    TORCH_CHECK_VALUE(!plan_.bound || plan_.bound->rank < ranks, source_,
                      ": \"bound\" has the rank ", plan_.bound->rank,
                      ", but there are ", ranks, " ranks");
    std::vector<PlannedPartition> expected(plan_.partitions.size());
    const std::vector<int> places =
        place_stages(static_cast<int>(plan_.balance.size()),
                     static_cast<int>(ranks), plan_.placement);
    for (std::size_t s = 0; s < places.size(); ++s) {
      expected[places[s]].stages.push_back(static_cast<int64_t>(s));
      expected[places[s]].layers += plan_.balance[s];
    }
    for (std::size_t r = 0; r < expected.size(); ++r) {
      const PlannedPartition& part = plan_.partitions[r];
      TORCH_CHECK_VALUE(
          part.stages.empty() || part.stages == expected[r].stages, source_,
          ": ranks ", r, ": \"stages\" has ", c10::Join(", ", part.stages),
          ", but should have ", c10::Join(", ", expected[r].stages));
      TORCH_CHECK_VALUE(part.layers == 0 || part.layers == expected[r].layers,
                        source_, ": ranks ", r, ": \"layers\" is ", part.layers,
                        ", but the \"balance\" gives it ", expected[r].layers);
    }
  }

  const std::string source_;
  bool where_needed_ = false;
  Plan plan_;
};

}  // namespace

Plan plan_from_json(const std::string& text, const std::string& source) {
  return PlanReader(text, source).take();
}

Plan read_plan(const std::string& path) {
  return plan_from_json(gpipe::internal::read_file(path), path);
}

std::string to_json(const Plan& plan) {
  Json json = {{"format", kPlanFormat.format},
               {"step_seconds", number(plan.step_seconds)},
               {"sum_seconds", number(plan.sum_seconds)},
               {"schedule", plan.schedule_name},
               {"stages_per_rank", plan.stages_per_rank},
               {"placement", plan.placement == Placement::kV ? "v" : "loop"},
               {"chunks", plan.chunks},
               {"checkpoint", recompute_text(plan.checkpoint,
                                             !plan.recomputed_stages.empty())},
               {"offload", plan.offload},
               {"balance", plan.balance}};
  if (!plan.recomputed_stages.empty()) {
    json["recomputed_stages"] = plan.recomputed_stages;
  }
  json["ranks"] = Json::array();
  for (const auto& each : plan.partitions) {
    json["ranks"].push_back(json_of(each));
  }
  if (plan.bound) {
    json["bound"] = {{"by", to_string(plan.bound->kind)},
                     {"rank", plan.bound->rank},
                     {"share", number(plan.bound->share)}};
  }
  json["families"] = Json::array();
  for (const auto& each : plan.families) {
    json["families"].push_back(json_of(each));
  }
  json["alternatives"] = Json::array();
  for (const PlanAlternative& each : plan.alternatives) {
    json["alternatives"].push_back(
        {{"with", each.change}, {"step_seconds", number(each.step_seconds)}});
  }
  constexpr int kIndent = 2;
  return json.dump(kIndent) + "\n";
}

// ---- JSON of machines

namespace {

// The deepest nesting is {"hosts": [{"devices": [{"type": ...}]}]}.
constexpr JsonFormat kMachinesFormat = {"gpipe machines 1",
                                        "a description of machines", 5};
constexpr int64_t kMostDevices = 1024;
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

class MachinesReader {
 public:
  MachinesReader(const std::string& text, const std::string& source)
      : source_(source) {
    read_document(text, source, kMachinesFormat, [&](JsonReader& reader) {
      between_hosts_ = link_of(reader);
      reader.each("hosts", "host", [&](JsonReader& host) { read_host(host); });
      reader.each("links", "link", [&](JsonReader& link) { read_link(link); });
    });
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
