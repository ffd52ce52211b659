#include "gpipe/base/json.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "gpipe/base/text.h"

namespace gpipe::internal {

// ---- Parsing

namespace {

// Builds the value, and checks limits and names before more of it is stored.
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  JsonBuilder(const std::string& source, const JsonLimits& limits)
      : source_(source), limits_(limits) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override {
    return add(value);
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }  // not in JSON

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }

  bool key(std::string& name) override {
    // Json's own functions would look for the name among all earlier ones.
    auto& members = open_.back()->get_ref<Json::object_t&>();
    members.emplace_back(std::move(name), nullptr);
    return true;
  }

  bool end_object() override {
    std::vector<std::string_view> names;
    for (const auto& member : open_.back()->items()) {
      names.push_back(member.key());
    }
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    if (twice != names.end()) fail("has ", in_quotes(*twice), " twice");
    return close();
  }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t, const std::string&,
                   const Json::exception& error) override {
    fail("is not JSON: ", error.what());
  }

 private:
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    JsonError error(absl::StrCat(source_, parts...),
                    open_.empty() ? nullptr : open_.back());
    add_place(error, root_);
    throw error;
  }

  // Stores a value, and remembers where.
  template <typename T>
  bool add(T&& value) {
    if (open_.empty()) {
      last_ = &(root_ = std::forward<T>(value));
    } else if (open_.back()->is_array()) {
      if (open_.back()->size() == limits_.list) {
        fail("has a list of more than ", limits_.list, " entries");
      }
      last_ = &open_.back()->emplace_back(std::forward<T>(value));
    } else {
      last_ = &open_.back()->get_ref<Json::object_t&>().back().second;
      *last_ = std::forward<T>(value);
    }
    return true;
  }

  bool open(Json value) {
    if (open_.size() == limits_.depth) {
      fail("has more than ", limits_.depth, " levels of nesting");
    }
    add(std::move(value));
    open_.push_back(last_);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& source_;
  const JsonLimits& limits_;
  Json root_;
  Json* last_ = nullptr;
  std::vector<Json*> open_;  // the values around the next one
};

// Appends the path from `from` to `place` if `place` is in it.
bool find_path(const Json& from, const Json* place, std::string& path) {
  if (&from == place) return true;
  if (!from.is_structured()) return false;
  const std::size_t size = path.size();
  for (auto each = from.begin(); each != from.end(); ++each) {
    path += "/";
    path += from.is_object() ? each.key() : std::to_string(each - from.begin());
    if (find_path(*each, place, path)) return true;
    path.resize(size);
  }
  return false;
}

}  // namespace

JsonError::JsonError(std::string text, const Json* place)
    : c10::ValueError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                      std::move(text)),
      place_(place) {}

void add_place(JsonError& error, const Json& root) {
  std::string path;
  if (find_path(root, error.place(), path) && !path.empty()) {
    error.add_context("at " + in_quotes(path));
  }
}

Json parse_json(std::string_view text, const std::string& source,
                const JsonLimits& limits) {
  JsonBuilder builder(source, limits);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

// ---- Values

void refuse_json(const char* wanted, const Json& json) {
  const std::string found =
      json.is_structured()
          ? absl::StrCat(json.is_array() ? "a list" : "an object", " of ",
                         json.size(), " entries")
      : json.is_string() ? in_quotes(json.get_ref<const std::string&>())
                         : json.dump();
  throw JsonError(absl::StrCat("expected ", wanted, ", but found ", found,
                               "; the file is damaged"),
                  &json);
}

const Json& field(const Json& json, const char* name) {
  const auto found = object(json).find(name);
  if (found == json.end()) {
    throw JsonError(
        absl::StrCat("an entry '", name, "' is missing in an object of ",
                     json.size(), " entries; the file is damaged"),
        &json);
  }
  return *found;
}

const Json* find_field(const Json& json, const char* name) {
  const auto found = object(json).find(name);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

int64_t integer(const Json& json) {
  if (!json.is_number_integer()) refuse_json("an integer", json);
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) {
    refuse_json("an integer of 64 bits", json);
  }
  return json.get<int64_t>();
}

int64_t whole(const Json& json) {
  if (integer(json) < 0) refuse_json("a number of 0 or more", json);
  return json.get<int64_t>();
}

bool boolean(const Json& json) {
  if (!json.is_boolean()) refuse_json("true or false", json);
  return json.get<bool>();
}

const std::string& text(const Json& json) {
  if (!json.is_string()) refuse_json("a text", json);
  return json.get_ref<const std::string&>();
}

const Json& list(const Json& json) {
  if (!json.is_array()) refuse_json("a list", json);
  return json;
}

const Json& object(const Json& json) {
  if (!json.is_object()) refuse_json("an object", json);
  return json;
}

// ---- Objects whose members are all known

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
  if (std::ranges::find(asked_for_, name) == asked_for_.end()) {
    asked_for_.push_back(name);
  }
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

const Json& JsonReader::list(const std::string& name) {
  const Json* value = find(name);
  static const Json& none = *new Json(Json::array());
  if (!value) return none;
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
                      "; known here are ", absl::StrJoin(asked_for_, ", "));
  }
}

}  // namespace gpipe::internal
