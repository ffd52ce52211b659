// The JSON form of a Profile.
#include <c10/util/Exception.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "balancing/profile.h"
#include "balancing/profile/json_reader.h"
#include "gpipe/base/read_file.h"

namespace gpipe::balancing {
namespace {

using detail::Json;
using detail::JsonReader;

constexpr char kFormat[] = "gpipe profile 1";
constexpr char kDocument[] = "a profile";

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

class ProfileReader {
 public:
  ProfileReader(const std::string& text, std::string source)
      : source_(std::move(source)) {
    const Json json = detail::parse_json(text, source_, kDepth, kDocument);
    JsonReader reader(json, source_, kDocument);
    reader.check_format(kFormat);
    if (reader.find("device")) profile_.device = reader.text("device");
    profile_.rows = reader.whole("rows");
    profile_.memory.input_bytes = reader.whole("input_bytes");
    for (const Json& layer : reader.list("layers")) read_layer(layer);
    reader.each("skips", "skip", [&](JsonReader& skip) { read_skip(skip); });
    reader.each("saved_by_several", "saved_by_several",
                [&](JsonReader& saved) { read_saved(saved); });
    reader.end();
  }

  Profile take() { return std::move(profile_); }

 private:
  static JsonReader reader_of(const Json& json, const std::string& place) {
    return {json, place, kDocument};
  }

  void read_layer(const Json& json) {
    auto& layers = profile_.memory.layers;
    const auto index = std::ssize(layers);
    const std::string name =
        reader_of(json, source_ + ": layer " + std::to_string(index))
            .text("name");
    TORCH_CHECK_VALUE(indices_.emplace(name, index).second, source_,
                      ": two layers are called '", name, "'");
    JsonReader reader = reader_of(json, source_ + ": layer '" + name + "'");
    profile_.names.push_back(reader.text("name"));
    profile_.times.push_back({reader.seconds("forward_seconds"),
                              reader.seconds("backward_seconds"),
                              reader.seconds("backward_input_seconds"),
                              reader.seconds("backward_weight_seconds"),
                              reader.seconds("accumulate_seconds")});
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
    JsonReader reader = reader_of(kept, place + ": \"kept_by\"");
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

  void read_skip(JsonReader& reader) {
    SkipMemory skip;
    skip.stashed_by = layer(reader.text("stashed_by"), reader.place());
    skip.popped_by = layer(reader.text("popped_by"), reader.place());
    TORCH_CHECK_VALUE(skip.stashed_by < skip.popped_by, reader.place(),
                      ": layer '", profile_.names[skip.popped_by],
                      "', which pops, must come after '",
                      profile_.names[skip.stashed_by], "', which stashes");
    skip.bytes = reader.whole("bytes");
    profile_.memory.skips.push_back(skip);
  }

  void read_saved(JsonReader& reader) {
    SavedTensor saved;
    saved.bytes = reader.whole("bytes");
    for (const Json& name : reader.list("layers")) {
      TORCH_CHECK_VALUE(name.is_string(), reader.place(), ": ", name.dump(),
                        " should be the name of a layer");
      saved.savers.push_back(layer(name.get<std::string>(), reader.place()));
    }
    auto& savers = saved.savers;
    std::ranges::sort(savers);
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
    const LayerTime& time = profile.times[k];
    if (time.backward_input != 0 || time.backward_weight != 0) {
      layer["backward_input_seconds"] = time.backward_input;
      layer["backward_weight_seconds"] = time.backward_weight;
    }
    if (time.accumulate != 0) layer["accumulate_seconds"] = time.accumulate;
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
  return profile_from_json(gpipe::internal::read_file(path), path);
}

}  // namespace gpipe::balancing
