// The texts of flags to values. No LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::benchmarks {

// "a,b" to {"a", "b"}; "" to {}. Blanks around an entry are dropped.
std::vector<std::string> split_list(std::string_view text);

// "3,4" to {3, 4}. std::invalid_argument, naming `flag`, for an entry that is
// no whole number above 0.
std::vector<int64_t> parse_positive_list(std::string_view flag,
                                         std::string_view text);

// {3, 4} to "3,4".
std::string join(const std::vector<int64_t>& values);
std::string join(const std::vector<std::string>& values,
                 std::string_view separator);

// The place of `text` in `choices`. std::invalid_argument that names the flag
// and the choices if it has none.
size_t parse_choice(std::string_view flag, std::string_view text,
                    const std::vector<std::string>& choices);

}  // namespace gpipe::benchmarks
