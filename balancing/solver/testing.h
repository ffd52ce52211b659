// Functions that the tests of the solvers share.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::balancing {

// Returns the text of the std::invalid_argument that `function` throws, or "no
// error".
template <typename Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

// Calls visit(balance) for each way to cut `layers` layers into `partitions`
// blocks of at least one layer. For exhaustive searches.
inline void for_each_balance(
    int64_t layers, int64_t partitions,
    const std::function<void(const std::vector<int64_t>&)>& visit) {
  std::vector<int64_t> balance;
  const std::function<void(int64_t, int64_t)> cut = [&](int64_t left,
                                                        int64_t blocks) {
    if (blocks == 1) {
      balance.push_back(left);
      visit(balance);
      balance.pop_back();
      return;
    }
    for (int64_t length = 1; length <= left - blocks + 1; ++length) {
      balance.push_back(length);
      cut(left - length, blocks - 1);
      balance.pop_back();
    }
  };
  cut(layers, partitions);
}

}  // namespace gpipe::balancing
