// Fuzzes parse_safetensors_index() with any bytes.
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <string>

#include "gpipe/testing/fuzz_check.h"
#include "models/weights/safetensors_folder.h"

using gpipe::internal::SafetensorsIndex;
using gpipe::testing::fuzz_check;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const auto text = gpipe::testing::fuzz_text(data, size);
  gpipe::testing::fuzz_parser<c10::ValueError>(
      size, {}, [&] { return gpipe::internal::parse_safetensors_index(text); },
      [](const SafetensorsIndex& index) {
        std::set<std::string> names;
        for (const auto& [name, file] : index) {
          fuzz_check(names.insert(name).second, "names differ");
          fuzz_check(!file.empty() && file.find('/') == std::string::npos &&
                         file != "..",
                     "files are in the folder");
        }
        SafetensorsIndex again = gpipe::internal::parse_safetensors_index(
            gpipe::internal::safetensors_index_text(index, 1, 2));
        SafetensorsIndex sorted = index;
        std::sort(sorted.begin(), sorted.end());
        std::sort(again.begin(), again.end());
        fuzz_check(again == sorted, "an index is read as it was written");
      });
  return 0;
}
