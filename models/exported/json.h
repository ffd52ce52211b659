// Checked access to the JSON of exported programs, which comes from outside.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace gpipe::exported {

using Json = nlohmann::json;

// Parses `text`. `source`: the name of the record, for errors. All functions of
// this file throw c10::ValueError if the JSON is not what they return.
// Thread-safe.
Json parse_json(std::string_view text, const std::string& source);

// Returns the entry `name` of an object. find_field() returns null if there is
// none, or if it is null.
const Json& field(const Json& object, const char* name);
const Json* find_field(const Json& object, const char* name);

// Return the value of a number, a text, a truth value, a list or an object.
int64_t integer(const Json& json);
bool boolean(const Json& json);
const std::string& text(const Json& json);
const Json& list(const Json& json);
const Json& object(const Json& json);

// Returns a floating-point number. JSON has no infinities, so PyTorch writes
// the texts "Infinity", "-Infinity" and "NaN".
double real(const Json& json);

// The content of a union of the schema, which is an object with one entry, the
// name of the alternative: {"as_int": 3}.
struct Alternative {
  const std::string& name;
  const Json& value;
};
Alternative alternative(const Json& json);

}  // namespace gpipe::exported
