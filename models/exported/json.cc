#include "models/exported/json.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

#include "models/weights/in_quotes.h"

namespace gpipe::exported {
namespace {

using internal::in_quotes;

// Returns the beginning of `json` as text, for errors. Does not write out large
// values.
std::string shown(const Json& json) {
  if (json.is_structured()) {
    return std::string(json.is_array() ? "a list" : "an object") + " of " +
           std::to_string(json.size()) + " entries";
  }
  if (json.is_string()) return in_quotes(json.get_ref<const std::string&>());
  return json.dump();
}

[[noreturn]] void refuse(const char* wanted, const Json& json) {
  C10_THROW_ERROR(ValueError, std::string("expected ") + wanted +
                                  ", but found " + shown(json) +
                                  "; the file is damaged");
}

}  // namespace

Json parse_json(std::string_view text, const std::string& source) {
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, "record ", in_quotes(source),
                      " is not JSON: ", error.what());
  }
}

const Json& field(const Json& json, const char* name) {
  const auto found = object(json).find(name);
  TORCH_CHECK_VALUE(found != json.end(), "an entry '", name,
                    "' is missing in an object of ", json.size(),
                    " entries; the file is damaged");
  return *found;
}

const Json* find_field(const Json& json, const char* name) {
  const auto found = object(json).find(name);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

int64_t integer(const Json& json) {
  if (!json.is_number_integer()) refuse("an integer", json);
  if (json.is_number_unsigned() &&
      json.get<uint64_t>() >
          static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    refuse("an integer of 64 bits", json);
  }
  return json.get<int64_t>();
}

bool boolean(const Json& json) {
  if (!json.is_boolean()) refuse("true or false", json);
  return json.get<bool>();
}

const std::string& text(const Json& json) {
  if (!json.is_string()) refuse("a text", json);
  return json.get_ref<const std::string&>();
}

const Json& list(const Json& json) {
  if (!json.is_array()) refuse("a list", json);
  return json;
}

const Json& object(const Json& json) {
  if (!json.is_object()) refuse("an object", json);
  return json;
}

double real(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const std::string& word = text(json);
  if (word == "Infinity") return std::numeric_limits<double>::infinity();
  if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  refuse("a number", json);
}

Alternative alternative(const Json& json) {
  if (!json.is_object() || json.size() != 1) {
    refuse("an object of one entry", json);
  }
  const auto entry = json.begin();
  return {entry.key(), entry.value()};
}

}  // namespace gpipe::exported
