#include "balancing/profile.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/base/files.h"
#include "gpipe/base/json.h"
#include "gpipe/base/text.h"
#include "gpipe/runtime/cell/microbatch.h"

namespace gpipe::balancing {

Profile detail::profile(const torch::nn::Sequential& module,
                        const internal::Value& sample,
                        const TimeOptions& options) {
  Profile result;
  // The memory profile comes first: it is fast, and finds a model that does not
  // work.
  result.memory = profile_memory(module, sample);
  result.times = profile_times(module, sample, options);
  result.names = module->named_children().keys();
  result.device = options.device().str();
  result.rows = internal::rows_of(sample);
  return result;
}

// ---- JSON

namespace {

using gpipe::internal::Json;
using gpipe::internal::JsonFormat;
using gpipe::internal::JsonReader;
using gpipe::internal::read_document;

// The deepest nesting is that of "saved_by_several": {"": [{"": [""]}]}.
constexpr JsonFormat kFormat = {"gpipe profile 1", "a profile", 4};

// A list of saved tensors, with the names of its members: of a layer, for what
// it saves alone, and of the profile.
struct SavedList {
  const char* alone;
  const char* several;
  std::vector<SavedTensor> MemoryProfile::*list;
};
constexpr SavedList kSaved[] = {
    {"saved_bytes", "saved_by_several", &MemoryProfile::saved},
    {"saved_for_weights_bytes", "saved_for_weights_by_several",
     &MemoryProfile::saved_for_weights},
};

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

class ProfileReader {
 public:
  ProfileReader(const std::string& text, std::string source)
      : source_(std::move(source)) {
    read_document(text, source_, kFormat,
                  [this](JsonReader& reader) { read(reader); });
  }

  Profile take() { return std::move(profile_); }

 private:
  void read(JsonReader& reader) {
    if (reader.find("device")) profile_.device = reader.text("device");
    profile_.rows = reader.whole("rows");
    profile_.memory.input_bytes = reader.whole("input_bytes");
    for (const Json& layer : reader.list("layers")) read_layer(reader, layer);
    reader.each("skips", "skip", [&](JsonReader& skip) { read_skip(skip); });
    for (const SavedList& each : kSaved) {
      reader.each(each.several, each.several,
                  [&](JsonReader& saved) { read_saved(saved, each); });
    }
  }

  void read_layer(const JsonReader& all, const Json& json) {
    auto& layers = profile_.memory.layers;
    const auto index = std::ssize(layers);
    const std::string name =
        all.inside(json, "layer " + std::to_string(index)).text("name");
    TORCH_CHECK_VALUE(indices_.emplace(name, index).second, source_,
                      ": two layers are called '", name, "'");
    JsonReader reader = all.inside(json, "layer '" + name + "'");
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
      JsonReader bytes = reader.inside(*kept, "\"kept_by\"");
      for (const auto& [op, value] : kept->items()) {
        memory.operators.push_back({op, bytes.whole(op)});
      }
    }
    for (const SavedList& each : kSaved) {
      const int64_t saved = reader.whole(each.alone);
      if (saved > 0) (profile_.memory.*each.list).push_back({saved, {index}});
    }
    layers.push_back(memory);
    reader.end();
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

  void read_saved(JsonReader& reader, const SavedList& list) {
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
        "what one layer keeps alone is its \"",
        list.alone, "\"");
    (profile_.memory.*list.list).push_back(std::move(saved));
  }

  const std::string source_;
  Profile profile_;
  std::map<std::string, int64_t> indices_;
};

int64_t saved_alone(const std::vector<SavedTensor>& list, int64_t layer) {
  int64_t bytes = 0;
  for (const SavedTensor& saved : list) {
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
    for (const SavedList& each : kSaved) {
      const auto& list = profile.memory.*each.list;
      if (each.list != &MemoryProfile::saved && list.empty()) continue;
      layer[each.alone] = saved_alone(list, static_cast<int64_t>(k));
    }
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
  if (names.size() != profile.times.size() ||
      names.size() != profile.memory.layers.size()) {
    gpipe::internal::refuse("a profile has ", names.size(), " names, ",
                            profile.times.size(), " times and the memory of ",
                            profile.memory.layers.size(),
                            " layers: give all three for each layer");
  }
  Json json = {{"format", kFormat.format},
               {"device", profile.device},
               {"rows", profile.rows},
               {"input_bytes", profile.memory.input_bytes},
               {"layers", layers_of(profile)},
               {"skips", Json::array()}};
  for (const SkipMemory& skip : profile.memory.skips) {
    json["skips"].push_back({{"stashed_by", names.at(skip.stashed_by)},
                             {"popped_by", names.at(skip.popped_by)},
                             {"bytes", skip.bytes}});
  }
  for (const SavedList& each : kSaved) {
    Json& several = json[each.several] = Json::array();
    for (const SavedTensor& saved : profile.memory.*each.list) {
      Json layers = Json::array();
      for (const int64_t k : saved.savers) layers.push_back(names.at(k));
      if (layers.size() < 2) continue;  // see layers_of()
      several.push_back(
          {{"bytes", saved.bytes}, {"layers", std::move(layers)}});
    }
  }
  try {
    return json.dump(/*indent=*/1) + "\n";
  } catch (const Json::exception& error) {
    gpipe::internal::refuse("the name of a layer is not UTF-8: ", error.what());
  }
}

Profile profile_from_json(const std::string& text, const std::string& source) {
  return ProfileReader(text, source).take();
}

void write_profile(const Profile& profile, const std::string& path) {
  gpipe::internal::write_file(path, to_json(profile));
}

Profile read_profile(const std::string& path) {
  return profile_from_json(gpipe::internal::read_file(path), path);
}

// ---- Text

std::string kept_text(const Profile& profile, int most) {
  std::vector<std::vector<std::string>> rows = {{"layer", "keeps", "by"}};
  for (std::size_t k = 0; k < profile.memory.layers.size(); ++k) {
    std::vector<OperatorMemory> operators = profile.memory.layers[k].operators;
    if (operators.empty()) continue;
    double total = 0;
    for (const OperatorMemory& each : operators) {
      total += static_cast<double>(each.bytes);
    }
    std::ranges::stable_sort(operators, std::ranges::greater(),
                             &OperatorMemory::bytes);
    std::string by;
    for (std::size_t n = 0; n < operators.size(); ++n) {
      if (n > 0) by += ", ";
      if (static_cast<int>(n) == most) {
        by += "...";
        break;
      }
      by += operators[n].name + " " +
            bytes_text(static_cast<double>(operators[n].bytes));
    }
    rows.push_back({profile.names.at(k), bytes_text(total), by});
  }
  std::string text;
  for (std::string& line : align_columns(rows, "lrl")) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace gpipe::balancing
