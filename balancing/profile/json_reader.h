// Checked reading of the JSON files of profiles, plans and machines. Internal
// to balancing.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gpipe::balancing::detail {

// Keeps members in the order in which they were added.
using Json = nlohmann::ordered_json;

// Reads the members of a JSON object, and reports members that were not asked
// for. All functions throw c10::ValueError, which names the place and the
// value.
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
  Json list(const std::string& name);
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
  int depth;             // its levels of nesting
};

// Parses JSON. `source`: for messages. Throws c10::ValueError, with line and
// column.
Json parse_json(const std::string& text, const std::string& source,
                const JsonFormat& format);

// Parses JSON and calls `read` with a reader of its object, and then its end().
// Throws c10::ValueError also unless its "format" is that of `format`.
template <typename Read>
void read_json(const std::string& text, const std::string& source,
               const JsonFormat& format, const Read& read) {
  const Json json = parse_json(text, source, format);
  JsonReader reader(json, source, format.document);
  reader.check_format(format.format);
  read(reader);
  reader.end();
}

}  // namespace gpipe::balancing::detail
