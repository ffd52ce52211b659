// Escapes text for XML, as in SVG pictures.
#pragma once

#include <string>
#include <string_view>

namespace gpipe {

// Returns `text` (UTF-8) as the content of an element, or of an attribute in
// double quotes. Control characters other than tab and line feed become
// question marks, because XML cannot represent most of them. Thread-safe.
std::string xml_escaped(std::string_view text);

}  // namespace gpipe
