#include "gpipe/simulation/timeline_json.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "gpipe/text/refuse.h"

namespace gpipe {
namespace {

using Json = nlohmann::json;

Json json_of(const Action& action) {
  return {action.stage, static_cast<int>(action.kind), action.microbatch,
          action.fused_with_next};
}

Action action_of(const Json& json) {
  const int kind = json.at(1).get<int>();
  if (kind < 0 || kind >= static_cast<int>(internal::kActionKinds)) {
    internal::refuse("there is no kind of action ", kind);
  }
  return {json.at(0).get<int>(), static_cast<ActionKind>(kind),
          json.at(2).get<int>(), json.at(3).get<bool>()};
}

std::vector<Span> spans_of(const Json& list) {
  std::vector<Span> spans;
  for (const Json& each : list) {
    spans.push_back({action_of(each.at(0)), each.at(1).get<double>(),
                     each.at(2).get<double>()});
  }
  return spans;
}

}  // namespace

std::string to_json(const Timeline& timeline) {
  Json json = {{"first_rank", timeline.first_rank},
               {"began", timeline.began},
               {"ranks", Json::array()},
               {"transfers", Json::array()},
               {"host_copies", Json::array()},
               {"memory", Json::array()},
               {"peak_bytes", timeline.peak_bytes}};
  for (const auto& spans : timeline.ranks) {
    Json list = Json::array();
    for (const Span& each : spans) {
      list.push_back(Json::array({json_of(each.action), each.start, each.end}));
    }
    json["ranks"].push_back(std::move(list));
  }
  for (const Transfer& each : timeline.transfers) {
    json["transfers"].push_back(
        Json::array({json_of(each.action), each.from, each.to, each.start,
                     each.sent, each.end, each.bytes}));
  }
  for (const auto& copies : timeline.host_copies) {
    Json list = Json::array();
    for (const HostCopy& each : copies) {
      list.push_back(Json::array(
          {json_of(each.action), each.place, each.start, each.end}));
    }
    json["host_copies"].push_back(std::move(list));
  }
  for (const auto& points : timeline.memory) {
    Json list = Json::array();
    for (const MemoryPoint& each : points) {
      list.push_back(Json::array({each.time, each.bytes}));
    }
    json["memory"].push_back(std::move(list));
  }
  return json.dump();
}

Timeline parse_timeline(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    std::vector<std::vector<Span>> ranks;
    for (const Json& list : json.at("ranks")) ranks.push_back(spans_of(list));
    Timeline timeline = timeline_of(std::move(ranks));
    timeline.first_rank = json.at("first_rank").get<int>();
    timeline.began = json.at("began").get<double>();
    for (const Json& each : json.at("transfers")) {
      timeline.transfers.push_back(
          {action_of(each.at(0)), each.at(1).get<int>(), each.at(2).get<int>(),
           each.at(3).get<double>(), each.at(4).get<double>(),
           each.at(5).get<double>(), each.at(6).get<double>()});
    }
    for (const Json& list : json.at("host_copies")) {
      auto& copies = timeline.host_copies.emplace_back();
      for (const Json& each : list) {
        copies.push_back({action_of(each.at(0)), each.at(1).get<std::size_t>(),
                          each.at(2).get<double>(), each.at(3).get<double>()});
      }
    }
    for (const Json& list : json.at("memory")) {
      auto& points = timeline.memory.emplace_back();
      for (const Json& each : list) {
        points.push_back({each.at(0).get<double>(), each.at(1).get<double>()});
      }
    }
    json.at("peak_bytes").get_to(timeline.peak_bytes);
    return timeline;
  } catch (const Json::exception& error) {
    internal::refuse("this is no timeline: ", error.what());
  }
}

}  // namespace gpipe
