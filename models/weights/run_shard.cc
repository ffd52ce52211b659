#include "models/weights/run_shard.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>

#include "models/weights/files.h"

namespace gpipe::internal {

std::vector<std::string> together(const RunShard& shard,
                                  const std::function<std::string()>& body) {
  if (shard.count == 1) return {body()};
  // The index of the process, then a result (+) or an error (-).
  std::string word = std::to_string(shard.index);
  try {
    word += "+" + body();
  } catch (const c10::Error& error) {
    word += std::string("-") + error.what_without_backtrace();
  } catch (const std::exception& error) {
    word += std::string("-") + error.what();
  } catch (...) {
    word += "-an exception that is no std::exception";
  }
  std::vector<std::string> all = shard.all_gather(word);
  TORCH_CHECK(all.size() == static_cast<std::size_t>(shard.count),
              "all_gather returned ", all.size(), " texts for ", shard.count,
              " processes");
  for (std::size_t k = 0; k < all.size(); ++k) {
    const std::string index = all[k].substr(0, all[k].find_first_of("+-"));
    TORCH_CHECK_VALUE(index == std::to_string(k), "process ", k, " of ",
                      shard.count, " has the index '", index,
                      "' in its RunShard; give each process its rank among "
                      "all processes, not that on its machine");
    all[k].erase(0, index.size());
  }
  for (std::size_t k = 0; k < all.size(); ++k) {
    TORCH_CHECK(all[k].starts_with("+"), "process ", k, " of ", shard.count,
                ": ", all[k].substr(std::min<std::size_t>(all[k].size(), 1)));
    all[k].erase(0, 1);
  }
  return all;
}

void share_folder(const std::string& folder, const RunShard& shard) {
  std::optional<AtomicFile> mark;
  const std::string name = together(shard, [&]() -> std::string {
    if (shard.index > 0) return "";
    make_folders(folder);
    if (shard.count == 1) return "";
    mark.emplace(folder + "/seen");
    return std::filesystem::path(mark->temporary_path()).filename().string();
  })[0];
  if (shard.count == 1) return;
  const auto others = together(shard, [&]() -> std::string {
    std::error_code error;
    const auto path = std::filesystem::absolute(folder, error);
    // A client of NFS may have noted that the folder is not there. It asks the
    // server again if the folders above are opened.
    std::filesystem::path above;
    for (const auto& each : path) {
      (void)std::filesystem::directory_iterator(above /= each, error);
    }
    return std::filesystem::exists(path / name, error) ? "" : path.string();
  });
  for (std::size_t k = 0; k < others.size(); ++k) {
    TORCH_CHECK_VALUE(others[k].empty(), "process ", k, " of ", shard.count,
                      " has another folder, ", others[k],
                      ", than process 0: a file of process 0 is not there; "
                      "give all processes one folder, on one machine or in a "
                      "network file system");
  }
}

}  // namespace gpipe::internal
