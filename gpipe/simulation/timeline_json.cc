#include "gpipe/simulation/timeline_json.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "gpipe/text/refuse.h"

namespace gpipe {

using Json = nlohmann::json;

// The conversions that nlohmann::json finds by their names. Each type is a list
// of its members.

static void to_json(Json& json, const Action& action) {
  json = Json::array({action.stage, static_cast<int>(action.kind),
                      action.microbatch, action.fused_with_next});
}
static void from_json(const Json& json, Action& action) {
  const int kind = json.at(1).get<int>();
  if (kind < 0 || kind >= static_cast<int>(internal::kActionKinds)) {
    internal::refuse("there is no kind of action ", kind);
  }
  action = {json.at(0).get<int>(), static_cast<ActionKind>(kind),
            json.at(2).get<int>(), json.at(3).get<bool>()};
}

static void to_json(Json& json, const Span& span) {
  json = Json::array({span.action, span.start, span.end});
}
static void from_json(const Json& json, Span& span) {
  span = {json.at(0).get<Action>(), json.at(1).get<double>(),
          json.at(2).get<double>()};
}

static void to_json(Json& json, const Transfer& each) {
  json = Json::array({each.action, each.from, each.to, each.start, each.sent,
                      each.end, each.bytes});
}
static void from_json(const Json& json, Transfer& each) {
  each = {json.at(0).get<Action>(), json.at(1).get<int>(),
          json.at(2).get<int>(),    json.at(3).get<double>(),
          json.at(4).get<double>(), json.at(5).get<double>(),
          json.at(6).get<double>()};
}

static void to_json(Json& json, const HostCopy& each) {
  json = Json::array({each.action, each.place, each.start, each.end});
}
static void from_json(const Json& json, HostCopy& each) {
  each = {json.at(0).get<Action>(), json.at(1).get<std::size_t>(),
          json.at(2).get<double>(), json.at(3).get<double>()};
}

static void to_json(Json& json, const MemoryPoint& point) {
  json = Json::array({point.time, point.bytes});
}
static void from_json(const Json& json, MemoryPoint& point) {
  point = {json.at(0).get<double>(), json.at(1).get<double>()};
}

std::string to_json(const Timeline& timeline) {
  return Json({{"first_rank", timeline.first_rank},
               {"began", timeline.began},
               {"ranks", timeline.ranks},
               {"transfers", timeline.transfers},
               {"host_copies", timeline.host_copies},
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
    json.at("memory").get_to(timeline.memory);
    json.at("peak_bytes").get_to(timeline.peak_bytes);
    return timeline;
  } catch (const Json::exception& error) {
    internal::refuse("this is no timeline: ", error.what());
  }
}

}  // namespace gpipe
