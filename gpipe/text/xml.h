// Text for XML, as in SVG pictures.
#pragma once

#include <string>
#include <string_view>

namespace gpipe {

// `text`, UTF-8, as the content of an element or of an attribute in double
// quotes. A control character that XML has no way to write is a question mark.
std::string xml_escaped(std::string_view text);

}  // namespace gpipe
