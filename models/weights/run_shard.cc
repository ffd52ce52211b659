#include "models/weights/run_shard.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <exception>

namespace gpipe::internal {

std::vector<std::string> together(const RunShard& shard,
                                  const std::function<std::string()>& body) {
  if (shard.count == 1) return {body()};
  // The first character tells a result (+) from an error (-).
  std::string word;
  try {
    word = "+" + body();
  } catch (const c10::Error& error) {
    word = std::string("-") + error.what_without_backtrace();
  } catch (const std::exception& error) {
    word = std::string("-") + error.what();
  }
  std::vector<std::string> all = shard.all_gather(word);
  TORCH_CHECK(all.size() == static_cast<std::size_t>(shard.count),
              "all_gather returned ", all.size(), " texts for ", shard.count,
              " processes");
  for (std::size_t k = 0; k < all.size(); ++k) {
    TORCH_CHECK(all[k].starts_with("+"), "process ", k, " of ", shard.count,
                ": ", all[k].substr(std::min<std::size_t>(all[k].size(), 1)));
    all[k].erase(0, 1);
  }
  return all;
}

}  // namespace gpipe::internal
