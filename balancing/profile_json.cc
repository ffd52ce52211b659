// The JSON form of a Profile.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "balancing/profile.h"

namespace gpipe::balancing {
namespace {

// Keeps members in the order in which they were added.
using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "gpipe profile 1";

// The deepest nesting is that of "saved_by_several": {"": [{"": [""]}]}.
constexpr int kDepth = 4;

// A byte count of a layer that is a plain member of LayerMemory.
struct ByteMember {
  const char* name;
  int64_t LayerMemory::*member;
};
constexpr ByteMember kBytes[] = {
    {"parameter_bytes", &LayerMemory::parameter_bytes},
    {"trained_bytes", &LayerMemory::trained_bytes},
    {"buffer_bytes", &LayerMemory::buffer_bytes},
    {"output_bytes", &LayerMemory::output_bytes},
    {"kept_bytes", &LayerMemory::kept_bytes},
    {"forward_peak_bytes", &LayerMemory::forward_peak_bytes},
};

// ---- Reading

// Reads the members of a JSON object, and reports members that were not asked
// for.
class Reader {
 public:
  // `place`: the object's name in messages ("profile.json: layer 'conv1'").
  Reader(const Json& object, std::string place)
      : object_(object), place_(std::move(place)) {
    TORCH_CHECK_VALUE(object_.is_object(), place_, ": is ", object_.dump(),
                      ", but should be an object, {...}");
  }

  // Returns null if the member is missing.
  const Json* find(const std::string& name) {
    asked_for_.push_back(name);
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }

  std::string text(const std::string& name) {
    const Json* value = find(name);
    TORCH_CHECK_VALUE(value, place_, ": has no \"", name, "\"");
    TORCH_CHECK_VALUE(value->is_string(), place_, ": \"", name, "\" is ",
                      value->dump(), ", but should be a text");
    return value->get<std::string>();
  }

  double seconds(const std::string& name) {
    const Json* value = find(name);
    if (!value) return 0;
    TORCH_CHECK_VALUE(value->is_number() &&
                          std::isfinite(value->get<double>()) &&
                          value->get<double>() >= 0,
                      place_, ": \"", name, "\" is ", value->dump(),
                      ", but should be a number of seconds, at least 0");
    return value->get<double>();
  }

  int64_t whole(const std::string& name) {
    const Json* value = find(name);
    if (!value) return 0;
    TORCH_CHECK_VALUE(
        value->is_number_unsigned() && value->get<uint64_t>() <= uint64_t{1}
                                                                     << 62,
        place_, ": \"", name, "\" is ", value->dump(),
        ", but should be a whole number, at least 0 and at most 2^62");
    return value->get<int64_t>();
  }

  // Returns an empty list if the member is missing.
  Json list(const std::string& name) {
    const Json* value = find(name);
    if (!value) return Json::array();
    TORCH_CHECK_VALUE(value->is_array(), place_, ": \"", name, "\" is ",
                      value->dump(), ", but should be a list, [...]");
    return *value;
  }

  // Throws c10::ValueError if the object has a member that was not asked for.
  void end() const {
    for (const auto& [name, value] : object_.items()) {
      TORCH_CHECK_VALUE(std::find(asked_for_.begin(), asked_for_.end(), name) !=
                            asked_for_.end(),
                        place_, ": there is no \"", name,
                        "\" in a profile; known here are ",
                        c10::Join(", ", asked_for_));
    }
  }

  const std::string& place() const { return place_; }

 private:
  const Json& object_;
  const std::string place_;
  std::vector<std::string> asked_for_;
};

class ProfileReader {
 public:
  ProfileReader(const std::string& text, std::string source)
      : source_(std::move(source)) {
    const Json json = parse(text);
    Reader reader(json, source_);
    const std::string format = reader.text("format");
    TORCH_CHECK_VALUE(format == kFormat, source_, ": \"format\" is \"", format,
                      "\", but should be \"", kFormat, "\"");
    if (reader.find("device")) profile_.device = reader.text("device");
    profile_.rows = reader.whole("rows");
    profile_.memory.input_bytes = reader.whole("input_bytes");
    for (const Json& layer : reader.list("layers")) read_layer(layer);
    for (const Json& skip : reader.list("skips")) read_skip(skip);
    for (const Json& saved : reader.list("saved_by_several")) read_saved(saved);
    reader.end();
  }

  Profile take() { return std::move(profile_); }

 private:
  Json parse(const std::string& text) const {
    // Deeper values would be copied and printed into messages by recursive
    // functions, and about 50,000 levels are too many for a thread's stack.
    const auto check_depth = [&](int depth, Json::parse_event_t, Json&) {
      TORCH_CHECK_VALUE(depth <= kDepth, source_, ": has more than ", kDepth,
                        " levels of nesting, but a profile needs no more");
      return true;
    };
    try {
      return Json::parse(text, check_depth);
    } catch (const Json::exception& error) {  // of a number, too
      TORCH_CHECK_VALUE(false, source_, ": ", error.what());
    }
  }

  std::string nth(const char* what, std::size_t index) const {
    return source_ + ": " + what + " " + std::to_string(index);
  }

  void read_layer(const Json& json) {
    auto& layers = profile_.memory.layers;
    const auto index = static_cast<int64_t>(layers.size());
    const std::string name =
        Reader(json, nth("layer", layers.size())).text("name");
    TORCH_CHECK_VALUE(indices_.emplace(name, index).second, source_,
                      ": two layers are called '", name, "'");
    Reader reader(json, source_ + ": layer '" + name + "'");
    profile_.names.push_back(reader.text("name"));
    profile_.times.push_back({reader.seconds("forward_seconds"),
                              reader.seconds("backward_seconds")});
    LayerMemory memory;
    for (const ByteMember& each : kBytes) {
      memory.*each.member = reader.whole(each.name);
    }
    if (const Json* kept = reader.find("kept_by")) {
      memory.operators = operators_of(*kept, reader.place());
    }
    const int64_t saved = reader.whole("saved_bytes");
    if (saved > 0) profile_.memory.saved.push_back({saved, {index}});
    layers.push_back(memory);
    reader.end();
  }

  static std::vector<OperatorMemory> operators_of(const Json& kept,
                                                  const std::string& place) {
    Reader reader(kept, place + ": \"kept_by\"");
    std::vector<OperatorMemory> operators;
    for (const auto& [name, bytes] : kept.items()) {
      operators.push_back({name, reader.whole(name)});
    }
    return operators;
  }

  int64_t layer(const std::string& name, const std::string& place) const {
    const auto found = indices_.find(name);
    TORCH_CHECK_VALUE(found != indices_.end(), place, ": there is no layer '",
                      name, "'");
    return found->second;
  }

  void read_skip(const Json& json) {
    auto& skips = profile_.memory.skips;
    Reader reader(json, nth("skip", skips.size()));
    SkipMemory skip;
    skip.stashed_by = layer(reader.text("stashed_by"), reader.place());
    skip.popped_by = layer(reader.text("popped_by"), reader.place());
    TORCH_CHECK_VALUE(skip.stashed_by < skip.popped_by, reader.place(),
                      ": layer '", profile_.names[skip.popped_by],
                      "', which pops, must come after '",
                      profile_.names[skip.stashed_by], "', which stashes");
    skip.bytes = reader.whole("bytes");
    reader.end();
    skips.push_back(skip);
  }

  void read_saved(const Json& json) {
    Reader reader(json, nth("saved_by_several", several_++));
    SavedTensor saved;
    saved.bytes = reader.whole("bytes");
    for (const Json& name : reader.list("layers")) {
      TORCH_CHECK_VALUE(name.is_string(), reader.place(), ": ", name.dump(),
                        " should be the name of a layer");
      saved.savers.push_back(layer(name.get<std::string>(), reader.place()));
    }
    reader.end();
    auto& savers = saved.savers;
    std::sort(savers.begin(), savers.end());
    TORCH_CHECK_VALUE(
        savers.size() >= 2 &&
            std::adjacent_find(savers.begin(), savers.end()) == savers.end(),
        reader.place(),
        ": \"layers\" should name two different layers or more, each once; "
        "what one layer keeps alone is its \"saved_bytes\"");
    profile_.memory.saved.push_back(std::move(saved));
  }

  const std::string source_;
  Profile profile_;
  std::map<std::string, int64_t> indices_;
  std::size_t several_ = 0;
};

// ---- Writing

int64_t saved_alone(const MemoryProfile& memory, int64_t layer) {
  int64_t bytes = 0;
  for (const SavedTensor& saved : memory.saved) {
    if (saved.savers == std::vector<int64_t>{layer}) bytes += saved.bytes;
  }
  return bytes;
}

Json layers_of(const Profile& profile) {
  Json layers = Json::array();
  for (std::size_t k = 0; k < profile.names.size(); ++k) {
    Json layer = {{"name", profile.names[k]},
                  {"forward_seconds", profile.times[k].forward},
                  {"backward_seconds", profile.times[k].backward}};
    for (const ByteMember& each : kBytes) {
      layer[each.name] = profile.memory.layers[k].*each.member;
    }
    layer["saved_bytes"] = saved_alone(profile.memory, static_cast<int64_t>(k));
    layer["kept_by"] = Json::object();
    for (const OperatorMemory& each : profile.memory.layers[k].operators) {
      layer["kept_by"][each.name] = each.bytes;
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace

std::string to_json(const Profile& profile) {
  const auto& names = profile.names;
  Json json = {{"format", kFormat},
               {"device", profile.device},
               {"rows", profile.rows},
               {"input_bytes", profile.memory.input_bytes},
               {"layers", layers_of(profile)},
               {"skips", Json::array()},
               {"saved_by_several", Json::array()}};
  for (const SkipMemory& skip : profile.memory.skips) {
    json["skips"].push_back({{"stashed_by", names.at(skip.stashed_by)},
                             {"popped_by", names.at(skip.popped_by)},
                             {"bytes", skip.bytes}});
  }
  for (const SavedTensor& saved : profile.memory.saved) {
    if (saved.savers.size() < 2) continue;
    Json layers = Json::array();
    for (const int64_t saver : saved.savers) layers.push_back(names.at(saver));
    json["saved_by_several"].push_back(
        {{"bytes", saved.bytes}, {"layers", std::move(layers)}});
  }
  return json.dump(/*indent=*/1) + "\n";
}

Profile profile_from_json(const std::string& text, const std::string& source) {
  return ProfileReader(text, source).take();
}

void write_profile(const Profile& profile, const std::string& path) {
  std::ofstream file(path);
  file << to_json(profile) << std::flush;
  TORCH_CHECK_VALUE(file, path, ": cannot be written");
}

Profile read_profile(const std::string& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  TORCH_CHECK_VALUE(file && text << file.rdbuf(), path,
                    ": cannot be read, or is empty");
  return profile_from_json(std::move(text).str(), path);
}

}  // namespace gpipe::balancing
