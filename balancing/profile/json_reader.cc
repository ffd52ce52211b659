#include "balancing/profile/json_reader.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace gpipe::balancing::detail {
namespace {

bool is_amount(const Json& value) {
  return value.is_number() && std::isfinite(value.get<double>()) &&
         value.get<double>() >= 0;
}

bool is_whole(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{1}
                                                                    << 62;
}

}  // namespace

JsonReader::JsonReader(const Json& object, std::string place,
                       std::string document)
    : object_(object),
      place_(std::move(place)),
      document_(std::move(document)) {
  TORCH_CHECK_VALUE(object_.is_object(), place_, ": is ", object_.dump(),
                    ", but should be an object, {...}");
}

const Json* JsonReader::find(const std::string& name) {
  asked_for_.push_back(name);
  const auto found = object_.find(name);
  return found == object_.end() ? nullptr : &*found;
}

template <typename T, typename IsValid>
T JsonReader::get(const std::string& name, T otherwise, const IsValid& is_valid,
                  const char* expected) {
  const Json* value = find(name);
  if (!value) return otherwise;
  expect(is_valid(*value), name, *value, expected);
  return value->get<T>();
}

void JsonReader::check_format(const std::string& format) {
  const std::string found = text("format");
  TORCH_CHECK_VALUE(found == format, place_, ": \"format\" is \"", found,
                    "\", but should be \"", format, "\"");
}

std::string JsonReader::text(const std::string& name) {
  const Json* value = find(name);
  TORCH_CHECK_VALUE(value, place_, ": has no \"", name, "\"");
  expect(value->is_string(), name, *value, "a text");
  return value->get<std::string>();
}

double JsonReader::seconds(const std::string& name, double otherwise) {
  return get(name, otherwise, is_amount, "a number of seconds, at least 0");
}

double JsonReader::positive(const std::string& name, double otherwise) {
  return get(
      name, otherwise,
      [](const Json& json) {
        return is_amount(json) && json.get<double>() > 0;
      },
      "a number above 0");
}

int64_t JsonReader::whole(const std::string& name, int64_t otherwise) {
  return get(name, otherwise, is_whole,
             "a whole number, at least 0 and at most 2^62");
}

int64_t JsonReader::count(const std::string& name, int64_t most,
                          int64_t otherwise) {
  const int64_t count = whole(name, otherwise);
  TORCH_CHECK_VALUE(count >= 1 && count <= most, place_, ": \"", name, "\" is ",
                    count, ", but should be 1 to ", most);
  return count;
}

double JsonReader::number(const std::string& name) {
  const Json* value = find(name);
  if (value && value->is_null()) return std::numeric_limits<double>::infinity();
  return get(name, 0.0, is_amount, "a number, at least 0, or null");
}

bool JsonReader::flag(const std::string& name) {
  return get(
      name, false, [](const Json& json) { return json.is_boolean(); },
      "true or false");
}

std::vector<int64_t> JsonReader::whole_list(const std::string& name) {
  std::vector<int64_t> result;
  for (const Json& value : list(name)) {
    TORCH_CHECK_VALUE(
        is_whole(value), place_, ": \"", name, "\" has ", value.dump(),
        ", but should have whole numbers, at least 0 and at most 2^62");
    result.push_back(value.get<int64_t>());
  }
  return result;
}

Json JsonReader::list(const std::string& name) {
  const Json* value = find(name);
  if (!value) return Json::array();
  expect(value->is_array(), name, *value, "a list, [...]");
  return *value;
}

void JsonReader::expect(bool valid, const std::string& name, const Json& value,
                        const char* expected) const {
  TORCH_CHECK_VALUE(valid, place_, ": \"", name, "\" is ", value.dump(),
                    ", but should be ", expected);
}

void JsonReader::end() const {
  for (const auto& [name, value] : object_.items()) {
    TORCH_CHECK_VALUE(std::ranges::find(asked_for_, name) != asked_for_.end(),
                      place_, ": there is no \"", name, "\" in ", document_,
                      "; known here are ", c10::Join(", ", asked_for_));
  }
}

Json parse_json(const std::string& text, const std::string& source,
                const JsonFormat& format) {
  // Deeper values would be copied and printed into messages by recursive
  // functions, and about 50,000 levels are too many for a thread's stack.
  const auto check_depth = [&](int level, Json::parse_event_t, Json&) {
    TORCH_CHECK_VALUE(level <= format.depth, source, ": has more than ",
                      format.depth, " levels of nesting, but ", format.document,
                      " needs no more");
    return true;
  };
  try {
    return Json::parse(text, check_depth);
  } catch (const Json::exception& error) {  // of a number, too
    TORCH_CHECK_VALUE(false, source, ": ", error.what());
  }
}

}  // namespace gpipe::balancing::detail
