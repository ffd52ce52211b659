// Reads JSON that comes from outside: a parser with limits, checked access to
// values, and a reader of objects whose members are all known.
//
// All functions throw c10::ValueError if the JSON is not what they return. All
// are thread-safe.
#pragma once

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::internal {

// Keeps members in the order of the text.
using Json = nlohmann::ordered_json;

// ---- Parsing

struct JsonLimits {
  // Levels of nesting. Deep values are printed and searched by recursion.
  std::size_t depth = 256;
  // Entries of one list.
  std::size_t list = std::numeric_limits<std::size_t>::max();
};

// Parses `text`. `source`: what stands before "is not JSON" in an error, such
// as "profile.json: ". Also throws if a limit is exceeded, or if an object has
// two members of one name. Takes time n log n, and memory of a small multiple
// of the text.
Json parse_json(std::string_view text, const std::string& source,
                const JsonLimits& limits = {});

// An error in JSON, or in one of its values.
class JsonError : public c10::ValueError {
 public:
  // `place`: the value, or null.
  explicit JsonError(std::string text, const Json* place = nullptr);
  const Json* place() const { return place_; }

 private:
  const Json* place_;
};

// Adds to an error where in `root` the value is: "at '/layers/3/name'".
void add_place(JsonError& error, const Json& root);

// Parses `text` and returns what read(value) returns. An error of the functions
// below says where the value is.
template <typename Read>
auto read_json(std::string_view text, const std::string& source,
               const JsonLimits& limits, const Read& read) {
  const Json root = parse_json(text, source, limits);
  try {
    return read(root);
  } catch (JsonError& error) {
    add_place(error, root);
    throw;
  }
}

// ---- Values

// Return the member `name` of an object. find_field() returns null if there is
// none, or if it is null.
const Json& field(const Json& json, const char* name);
const Json* find_field(const Json& json, const char* name);

// Return the value of a number, a text, a truth value, a list or an object.
int64_t integer(const Json& json);
int64_t whole(const Json& json);  // 0 or more
bool boolean(const Json& json);
const std::string& text(const Json& json);
const Json& list(const Json& json);
const Json& object(const Json& json);

// Throws "expected `wanted`, but found ..." with the beginning of `json`.
[[noreturn]] void refuse_json(const char* wanted, const Json& json);

// ---- Objects whose members are all known

// Reads the members of a JSON object, and reports members that were not asked
// for. Errors name the place and the value.
class JsonReader {
 public:
  // `object` must outlive the reader. `place`: the object's name in messages
  // ("profile.json: layer 'conv1'"). `document`: "a profile".
  JsonReader(const Json& object, std::string place, std::string document);

  // Throws unless "format" is `format`.
  void check_format(const std::string& format);

  // Returns null if the member is missing.
  const Json* find(const std::string& name);

  // Throws if the member is missing.
  std::string text(const std::string& name);
  // Return `otherwise` if the member is missing.
  double seconds(const std::string& name, double otherwise = 0);
  // Above 0.
  double positive(const std::string& name, double otherwise);
  // At most 2^62.
  int64_t whole(const std::string& name, int64_t otherwise = 0);
  // From 1 to `most`.
  int64_t count(const std::string& name, int64_t most, int64_t otherwise = 0);
  // Returns 0 if the member is missing, and infinity if it is null.
  double number(const std::string& name);
  // Returns false if the member is missing.
  bool flag(const std::string& name);
  // Return an empty list if the member is missing.
  const Json& list(const std::string& name);
  std::vector<int64_t> whole_list(const std::string& name);
  // Calls `read` with a reader of each object of a list, and then its end().
  // The place of object k is this one's with "`what` k".
  template <typename Read>
  void each(const std::string& name, const std::string& what,
            const Read& read) {
    int64_t count = 0;
    for (const Json& json : list(name)) {
      JsonReader members = inside(json, what + " " + std::to_string(count++));
      read(members);
      members.end();
    }
  }

  // Returns a reader of `object`, which is in this one. `part`: its name in
  // messages, after that of this one.
  JsonReader inside(const Json& object, const std::string& part) const {
    return {object, place_ + ": " + part, document_};
  }

  // Throws if the object has a member that was not asked for.
  void end() const;

  const std::string& place() const { return place_; }

 private:
  // Returns the value of a member, or `otherwise` if it is missing.
  template <typename T, typename IsValid>
  T get(const std::string& name, T otherwise, const IsValid& is_valid,
        const char* expected);
  void expect(bool valid, const std::string& name, const Json& value,
              const char* expected) const;

  const Json& object_;
  const std::string place_, document_;
  std::vector<std::string> asked_for_;
};

// One kind of JSON file.
struct JsonFormat {
  const char* format;    // the value of its member "format"
  const char* document;  // its name in messages: "a profile"
  std::size_t depth;     // its levels of nesting
};

// Parses JSON and calls `read` with a reader of its object, and then its end().
// `source`: the reader's place. Also throws unless the object's "format" is
// that of `format`.
template <typename Read>
void read_document(std::string_view text, const std::string& source,
                   const JsonFormat& format, const Read& read) {
  const Json json = parse_json(text, source + ": ", {.depth = format.depth});
  JsonReader reader(json, source, format.document);
  reader.check_format(format.format);
  read(reader);
  reader.end();
}

}  // namespace gpipe::internal
