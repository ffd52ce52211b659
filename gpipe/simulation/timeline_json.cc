#include "gpipe/simulation/timeline_json.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "gpipe/base/text.h"

namespace gpipe {

using Json = nlohmann::json;

// Return the members of each type, in the order in which they are in its list.
static auto members(Action& each) {
  return std::tie(each.stage, each.kind, each.microbatch, each.fused_with_next);
}
static auto members(Span& each) {
  return std::tie(each.action, each.start, each.end);
}
static auto members(Transfer& each) {
  return std::tie(each.action, each.from, each.to, each.start, each.sent,
                  each.end, each.bytes);
}
static auto members(HostCopy& each) {
  return std::tie(each.action, each.place, each.start, each.end);
}
static auto members(GradientSum& each) {
  return std::tie(each.start, each.end, each.bytes);
}
static auto members(MemoryPoint& each) {
  return std::tie(each.time, each.bytes);
}

// The conversions that nlohmann::json finds by their names.

static void from_json(const Json& json, ActionKind& kind) {
  const int number = json.get<int>();
  if (number < 0 || number >= static_cast<int>(internal::kActionKinds)) {
    internal::refuse("there is no kind of action ", number);
  }
  kind = static_cast<ActionKind>(number);
}

template <typename T>
requires requires(T& each) { members(each); }
static void to_json(Json& json, T each) {
  std::apply([&](auto&... member) { json = Json::array({member...}); },
             members(each));
}

template <typename T>
requires requires(T& each) { members(each); }
static void from_json(const Json& json, T& each) {
  std::apply(
      [&](auto&... member) {
        std::size_t k = 0;
        (json.at(k++).get_to(member), ...);
      },
      members(each));
}

std::string to_json(const Timeline& timeline) {
  return Json({{"first_rank", timeline.first_rank},
               {"began", timeline.began},
               {"ranks", timeline.ranks},
               {"transfers", timeline.transfers},
               {"host_copies", timeline.host_copies},
               {"gradient_sums", timeline.gradient_sums},
               {"memory", timeline.memory},
               {"peak_bytes", timeline.peak_bytes}})
      .dump();
}

Timeline parse_timeline(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    Timeline timeline =
        timeline_of(json.at("ranks").get<std::vector<std::vector<Span>>>());
    json.at("first_rank").get_to(timeline.first_rank);
    json.at("began").get_to(timeline.began);
    json.at("transfers").get_to(timeline.transfers);
    json.at("host_copies").get_to(timeline.host_copies);
    json.at("gradient_sums").get_to(timeline.gradient_sums);
    json.at("memory").get_to(timeline.memory);
    json.at("peak_bytes").get_to(timeline.peak_bytes);
    return timeline;
  } catch (const Json::exception& error) {
    internal::refuse("this is no timeline: ", error.what());
  }
}

}  // namespace gpipe
