// The elements of an SVG picture as text. No LibTorch.
#pragma once

#include <string>
#include <string_view>

namespace gpipe {

// Positions and lengths are in pixels. `style`: a class of the style sheet, or
// "". Texts and tooltips may be any bytes. Those that are not UTF-8 become
// question marks. So do characters that XML cannot represent: control
// characters other than tab and line feed, U+FFFE and U+FFFF.
// All functions are thread-safe.

std::string svg_number(double value);

// Returns a text whose baseline is at `y`.
std::string svg_text(double x, double y, std::string_view style,
                     std::string_view text);

// Return a line and a box. `tooltip`: "" for none. `attributes`: more
// attributes of the box, such as `fill="#fff"`.
std::string svg_line(std::string_view style, double x1, double y1, double x2,
                     double y2, std::string_view tooltip = "");
std::string svg_box(std::string_view style, double x, double y, double width,
                    double height, std::string_view attributes = "",
                    std::string_view tooltip = "");

// Returns a document with a white background that needs no other file. `style`:
// rules of the style sheet, in addition to those of all pictures: texts and the
// classes `title`, and `right` for a text that ends at x. `body`: elements.
std::string svg_document(double width, double height, std::string_view style,
                         std::string_view body);

// Returns the distance of the ticks of an axis: 1, 2 or 5 times a power of ten,
// for at most about `most` ticks in `span`.
double tick_step(double span, int most);

}  // namespace gpipe
