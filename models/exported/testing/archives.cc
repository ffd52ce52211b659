#include "models/exported/testing/archives.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

namespace gpipe::testing {

void edit_archive(const std::string& from, const std::string& to,
                  const EditRecord& edit) {
  caffe2::serialize::PyTorchStreamReader reader(from);
  caffe2::serialize::PyTorchStreamWriter writer(to);
  for (const std::string& name : reader.getAllRecords()) {
    // The writer writes its own.
    if (name.rfind(".data/", 0) == 0 || name == "version") continue;
    const auto [data, size] = reader.getRecord(name);
    std::string content(static_cast<const char*>(data.get()), size);
    if (edit(name, content)) {
      writer.writeRecord(name, content.data(), content.size());
    }
  }
  writer.writeEndOfFile();
}

void edit_program(const std::string& from, const std::string& to,
                  const std::string& old_text, const std::string& new_text) {
  bool found = false;
  edit_archive(from, to, [&](const std::string& name, std::string& content) {
    if (name.rfind("models/", 0) != 0) return true;
    const auto at = content.find(old_text);
    found = at != std::string::npos;
    if (found) content.replace(at, old_text.size(), new_text);
    return true;
  });
  TORCH_CHECK(found, "the program does not contain ", old_text);
}

}  // namespace gpipe::testing
