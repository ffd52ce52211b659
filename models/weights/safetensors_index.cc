#include "models/weights/safetensors_index.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "models/weights/in_quotes.h"

namespace gpipe::internal {
namespace {

using Json = nlohmann::json;

constexpr char kWeightMap[] = "weight_map";

// A handler that gets the JSON piece by piece, and stores only the map.
class IndexHandler : public nlohmann::json_sax<Json> {
 public:
  SafetensorsIndex take() {
    TORCH_CHECK_VALUE(has_map_, "has no 'weight_map'");
    return std::move(index_);
  }

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(int64_t) override { return other("a number"); }
  bool number_unsigned(uint64_t) override { return other("a number"); }
  bool number_float(double, const std::string&) override {
    return other("a number");
  }
  bool binary(Json::binary_t&) override { return other("bytes"); }

  bool string(std::string& value) override {
    if (place_ != Place::kMap) return other("a text");
    // A name such as "../x" must not lead out of the folder.
    TORCH_CHECK_VALUE(!value.empty() && value != "." && value != ".." &&
                          value.find_first_of(std::string_view("/\\\0", 3)) ==
                              std::string::npos,
                      "says that ", in_quotes(key_), " is in ",
                      in_quotes(value),
                      ", which is not the name of a file in this folder");
    index_.emplace_back(key_, std::move(value));
    return true;
  }

  bool key(std::string& value) override {
    if (skipped_ > 0) return true;
    key_ = std::move(value);
    if (place_ == Place::kMap) {
      TORCH_CHECK_VALUE(names_.insert(key_).second, "has ", in_quotes(key_),
                        " twice");
    } else if (key_ == kWeightMap) {
      TORCH_CHECK_VALUE(!has_map_, "has 'weight_map' twice");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && skipped_ == 0 && key_ == kWeightMap) {
      place_ = Place::kMap;
      has_map_ = true;
    } else {
      other("an object");
      ++skipped_;
    }
    return true;
  }

  bool end_object() override {
    if (skipped_ > 0) {
      --skipped_;
    } else {
      place_ = place_ == Place::kMap ? Place::kTop : Place::kOutside;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    other("a list");
    ++skipped_;
    return true;
  }

  bool end_array() override {
    --skipped_;
    return true;
  }

  bool parse_error(std::size_t, const std::string&,
                   const Json::exception& error) override {
    TORCH_CHECK_VALUE(false, "is not JSON: ", error.what());
  }

 private:
  enum class Place { kOutside, kTop, kMap };

  // Ignores a value outside of the map. Throws in the place of the map, or
  // where it has a file.
  bool other(const char* what) const {
    if (skipped_ > 0) return true;
    TORCH_CHECK_VALUE(place_ != Place::kOutside, "is ", what,
                      ", but should be an object");
    TORCH_CHECK_VALUE(
        place_ == Place::kTop && key_ != kWeightMap, "has ", what, " for ",
        in_quotes(key_), ", but should have ",
        place_ == Place::kMap ? "the name of a file" : "an object");
    return true;
  }

  SafetensorsIndex index_;
  Place place_ = Place::kOutside;
  bool has_map_ = false;
  std::size_t skipped_ = 0;  // the depth in a value that is ignored
  std::string key_;          // the last key outside of ignored values
  std::unordered_set<std::string> names_;
};

}  // namespace

SafetensorsIndex parse_safetensors_index(std::string_view json) {
  IndexHandler handler;
  Json::sax_parse(json.begin(), json.end(), &handler);
  return handler.take();
}

std::string safetensors_index_text(const SafetensorsIndex& index,
                                   uint64_t bytes, uint64_t elements) {
  Json map = Json::object();
  for (const auto& [name, file] : index) map[name] = file;
  const Json json = {
      {"metadata", {{"total_parameters", elements}, {"total_size", bytes}}},
      {kWeightMap, std::move(map)}};
  try {
    return json.dump(/*indent=*/2, ' ', /*ensure_ascii=*/true) + "\n";
  } catch (const Json::exception&) {
    TORCH_CHECK_VALUE(false,
                      "the name of a tensor is not UTF-8, which safetensors "
                      "requires");
  }
}

}  // namespace gpipe::internal
