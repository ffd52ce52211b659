// Archives of exported programs with changed records.
#pragma once

#include <functional>
#include <string>

namespace gpipe::testing {

// Changes the content of the record `name`. Returns false to leave it out.
using EditRecord =
    std::function<bool(const std::string& name, std::string& content)>;

// Copies the archive `from` to the file `to`, with each record edited.
void edit_archive(const std::string& from, const std::string& to,
                  const EditRecord& edit);

// Copies the archive with the first `old_text` of the program's JSON replaced
// by `new_text`. Throws c10::Error if the JSON does not contain it.
void edit_program(const std::string& from, const std::string& to,
                  const std::string& old_text, const std::string& new_text);

}  // namespace gpipe::testing
