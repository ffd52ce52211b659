#include "training/files/manifest.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "gpipe/base/crc32c.h"
#include "gpipe/base/json.h"
#include "training/files/tensor_file.h"

namespace gpipe::internal {
namespace {

constexpr char kFormat[] = "gpipe run state";
constexpr int kVersion = 1;

std::string hexadecimal(uint32_t number) {
  return absl::StrFormat("%08x", number);
}

uint32_t checksum_in(const Json& json) {
  uint32_t number = 0;
  if (!absl::SimpleHexAtoi(text(json), &number)) {
    refuse_json("a checksum", json);
  }
  return number;
}

// Returns the end of a manifest. `checksum` covers all bytes before it.
std::string ending(uint32_t checksum) {
  return ",\n \"crc32c\": \"" + hexadecimal(checksum) + "\"\n}\n";
}

// Writes values that are not finite as strings, since JSON lacks them.
Json json_of(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double double_of(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const std::string& word = text(json);
  const double infinity = std::numeric_limits<double>::infinity();
  if (word == "inf") return infinity;
  if (word == "-inf") return -infinity;
  return std::numeric_limits<double>::quiet_NaN();
}

// ---- Files

Json json_of(const TensorFileRecord& file) {
  Json tensors = Json::array();
  for (const TensorRecord& each : file.tensors) {
    tensors.push_back({{"name", each.name},
                       {"dtype", c10::toString(each.dtype)},
                       {"shape", each.sizes},
                       {"crc32c", hexadecimal(each.checksum)}});
  }
  return {{"file", file.name},
          {"size", file.size},
          {"header_size", file.header_size},
          {"header_crc32c", hexadecimal(file.header_checksum)},
          {"tensors", std::move(tensors)}};
}

c10::ScalarType dtype_of(const std::string& name) {
  for (int k = 0; k < static_cast<int>(c10::ScalarType::NumOptions); ++k) {
    const auto dtype = static_cast<c10::ScalarType>(k);
    if (name == c10::toString(dtype)) return dtype;
  }
  throw Damage("unknown dtype " + name);
}

TensorFileRecord file_of(const Json& json) {
  TensorFileRecord file;
  file.name = text(field(json, "file"));
  file.size = whole(field(json, "size"));
  file.header_size = whole(field(json, "header_size"));
  file.header_checksum = checksum_in(field(json, "header_crc32c"));
  if (file.name.find('/') != std::string::npos || file.header_size < 8 ||
      file.header_size > file.size) {
    throw Damage("impossible file '" + file.name + "'");
  }
  for (const Json& each : list(field(json, "tensors"))) {
    TensorRecord& tensor = file.tensors.emplace_back();
    tensor.name = text(field(each, "name"));
    tensor.dtype = dtype_of(text(field(each, "dtype")));
    for (const Json& size : list(field(each, "shape"))) {
      tensor.sizes.push_back(integer(size));
    }
    tensor.checksum = checksum_in(field(each, "crc32c"));
  }
  return file;
}

// The files of a part and their names in the manifest.
constexpr std::pair<const char*,
                    std::optional<TensorFileRecord> Manifest::Part::*>
    kFiles[] = {{"model", &Manifest::Part::model},
                {"optimizer", &Manifest::Part::optimizer},
                {"generators", &Manifest::Part::generators}};

Json json_of(const Manifest::Part& part) {
  Json json = Json::object();
  for (const auto& [name, file] : kFiles) {
    if (part.*file) json[name] = json_of(*(part.*file));
  }
  return json;
}

Manifest::Part part_of(const Json& json) {
  Manifest::Part part;
  for (const auto& [name, file] : kFiles) {
    if (const Json* found = find_field(json, name))
      part.*file = file_of(*found);
  }
  return part;
}

// ---- The optimizer

Json json_of(const OptimizerState& state) {
  Json groups = Json::array(), parameters = Json::array();
  for (const auto& options : state.groups) {
    Json group = Json::object();
    for (const auto& [name, value] : options) group[name] = json_of(value);
    groups.push_back(std::move(group));
  }
  for (const auto& [name, parameter] : state.parameters) {
    Json tensors = Json::array();
    for (const auto& each : parameter.tensors) tensors.push_back(each.first);
    Json counts = Json::object();
    for (const auto& [what, value] : parameter.counts) counts[what] = value;
    parameters.push_back({{"name", name},
                          {"group", parameter.group},
                          {"counts", std::move(counts)},
                          {"tensors", std::move(tensors)}});
  }
  return {{"type", state.type},
          {"groups", std::move(groups)},
          {"parameters", std::move(parameters)}};
}

OptimizerState optimizer_of(const Json& json) {
  OptimizerState state;
  state.type = text(field(json, "type"));
  for (const Json& group : list(field(json, "groups"))) {
    auto& options = state.groups.emplace_back();
    for (const auto& [name, value] : object(group).items()) {
      options[name] = double_of(value);
    }
  }
  for (const Json& each : list(field(json, "parameters"))) {
    OptimizerState::Parameter parameter;
    parameter.group = whole(field(each, "group"));
    if (parameter.group >= state.groups.size()) {
      throw Damage("a parameter of group " + std::to_string(parameter.group));
    }
    for (const auto& [what, count] : object(field(each, "counts")).items()) {
      parameter.counts[what] = integer(count);
    }
    for (const Json& what : list(field(each, "tensors"))) {
      parameter.tensors[text(what)] = at::Tensor();
    }
    state.parameters[text(field(each, "name"))] = parameter;
  }
  return state;
}

// Adds the optimizer state of another process to `to`.
void add(const OptimizerState& more, OptimizerState& to) {
  TORCH_CHECK_VALUE(more.type == to.type, "the optimizer of one process is ",
                    to.type, ", but that of another is ", more.type);
  for (const auto& [name, parameter] : more.parameters) {
    // Merges groups with equal options. Restoring treats them alike.
    const auto& options = more.groups.at(parameter.group);
    const auto found = std::find(to.groups.begin(), to.groups.end(), options);
    OptimizerState::Parameter moved = parameter;
    moved.group = static_cast<std::size_t>(found - to.groups.begin());
    if (found == to.groups.end()) to.groups.push_back(options);
    TORCH_CHECK_VALUE(
        to.parameters.emplace(name, std::move(moved)).second,
        "the optimizers of two processes both have '", name,
        "'; with replicas, only one of them may save an optimizer");
  }
}

Manifest manifest_of(const Json& json) {
  Manifest manifest;
  const std::string& format = text(field(json, "format"));
  TORCH_CHECK_VALUE(format == kFormat, "has the format '", format,
                    "'; this gpipe reads '", kFormat, "'");
  const int64_t version = integer(field(json, "version"));
  TORCH_CHECK_VALUE(version <= kVersion, "has version ", version,
                    " of the format; this gpipe reads versions up to ",
                    kVersion);
  manifest.step = integer(field(json, "step"));
  for (const auto& [name, word] : object(field(json, "words")).items()) {
    manifest.metadata.emplace(name, text(word));
  }
  for (const Json& each : list(field(json, "parts"))) {
    manifest.parts.push_back(part_of(each));
  }
  if (const Json* optimizer = find_field(json, "optimizer")) {
    manifest.optimizer = optimizer_of(*optimizer);
  }
  return manifest;
}

}  // namespace

std::string tensor_key(const std::string& what, const std::string& parameter) {
  return what + ":" + parameter;
}

std::string manifest_text(const Manifest& manifest) {
  Json parts = Json::array();
  for (const auto& each : manifest.parts) parts.push_back(json_of(each));
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"step", manifest.step},
               {"words", manifest.metadata},
               {"parts", std::move(parts)}};
  if (manifest.optimizer) json["optimizer"] = json_of(*manifest.optimizer);
  std::string text;
  try {
    text = json.dump(/*indent=*/1);
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(
        false, "a name or an entry of `metadata` in a run state is not UTF-8: ",
        error.what());
  }
  text.resize(text.size() - 2);  // without "\n}"
  return text + ending(crc32c(text.data(), text.size()));
}

Manifest parse_manifest(std::string_view text) {
  const std::size_t end = ending(0).size();
  if (text.size() < end) {
    throw Damage("has " + std::to_string(text.size()) +
                 " bytes and is cut off");
  }
  const std::size_t size = text.size() - end;
  if (text.substr(size) != ending(crc32c(text.data(), size))) {
    throw Damage("has changed since it was written");
  }
  try {
    return read_json(text, "", {}, manifest_of);
  } catch (const JsonError& error) {
    throw Damage(std::string("cannot be understood: ") +
                 error.what_without_backtrace());
  }
}

Manifest merge(std::vector<Manifest> parts) {
  Manifest result = std::move(parts.at(0));
  for (std::size_t k = 1; k < parts.size(); ++k) {
    Manifest& each = parts[k];
    TORCH_CHECK_VALUE(each.step == result.step, "process 0 saves step ",
                      result.step, ", but process ", k, " saves step ",
                      each.step);
    std::move(each.parts.begin(), each.parts.end(),
              std::back_inserter(result.parts));
    if (!each.optimizer) continue;
    if (result.optimizer) {
      add(*each.optimizer, *result.optimizer);
    } else {
      result.optimizer = std::move(each.optimizer);
    }
  }
  std::map<std::string, std::size_t> owner;
  for (std::size_t k = 0; k < result.parts.size(); ++k) {
    if (!result.parts[k].model) continue;
    for (const TensorRecord& each : result.parts[k].model->tensors) {
      const auto [at, added] = owner.emplace(each.name, k);
      TORCH_CHECK_VALUE(added, "processes ", at->second, " and ", k,
                        " both save '", each.name,
                        "'; with replicas, only one of them may save a model");
    }
  }
  return result;
}

}  // namespace gpipe::internal
