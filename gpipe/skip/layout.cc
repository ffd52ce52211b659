#include "gpipe/skip/layout.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <tuple>

namespace gpipe {

Namespace::Namespace() {
  static std::atomic<std::uint64_t> last{0};
  id_ = ++last;
}

}  // namespace gpipe

namespace gpipe::internal {
namespace {

// Returns "'layer' `what` 'name' `rest`".
std::string mismatch(const LayerSkips& layer, const char* what,
                     const SkipKey& key, const char* rest) {
  return "'" + layer.layer + "' " + what + " '" + key.name + "' " + rest;
}

}  // namespace

std::vector<std::string> skip_mismatches(
    const std::vector<LayerSkips>& layers) {
  std::vector<std::string> problems;
  std::set<SkipKey> stashed, popped;
  std::vector<SkipKey> stash_order;
  for (const LayerSkips& layer : layers) {
    std::set<SkipKey> both;
    for (const SkipKey& key : layer.stash) {
      if (std::ranges::find(layer.pop, key) != layer.pop.end()) {
        both.insert(key);
        problems.push_back(mismatch(layer, "declared", key,
                                    "both as stashable and as poppable"));
        continue;
      }
      if (!stashed.insert(key).second) {
        problems.push_back(
            mismatch(layer, "redeclared", key,
                     "as stashable but not isolated by namespace"));
        continue;
      }
      stash_order.push_back(key);
    }
    for (const SkipKey& key : layer.pop) {
      if (both.count(key)) continue;
      if (popped.count(key)) {
        problems.push_back(
            mismatch(layer, "redeclared", key,
                     "as poppable but not isolated by namespace"));
      } else if (!stashed.count(key)) {
        problems.push_back(mismatch(layer, "declared", key,
                                    "as poppable but it was not stashed"));
      } else {
        popped.insert(key);
      }
    }
  }
  for (const SkipKey& key : stash_order) {
    if (!popped.count(key)) {
      problems.push_back("no module declared '" + key.name +
                         "' as poppable but stashed");
    }
  }
  return problems;
}

std::vector<SkipRoute> skip_routes(const std::vector<LayerSkips>& layers,
                                   const std::vector<int64_t>& balance) {
  // partition, place in stashing order
  std::map<SkipKey, std::pair<int64_t, int64_t>> source;
  std::vector<std::tuple<int64_t, int64_t, int64_t, SkipKey>> crossing;
  std::size_t layer = 0;
  for (std::size_t j = 0; j < balance.size(); ++j) {
    const auto partition = static_cast<int64_t>(j);
    for (int64_t k = 0; k < balance[j]; ++k, ++layer) {
      for (const SkipKey& key : layers[layer].stash) {
        source.emplace(
            key,
            std::make_pair(partition, static_cast<int64_t>(source.size())));
      }
      for (const SkipKey& key : layers[layer].pop) {
        const auto [from, order] = source.at(key);
        if (from != partition) {
          crossing.emplace_back(partition, from, order, key);
        }
      }
    }
  }
  std::ranges::sort(crossing);
  std::vector<SkipRoute> routes;
  routes.reserve(crossing.size());
  std::vector<int64_t> exports(balance.size()), imports(balance.size());
  for (const auto& [to, from, order, key] : crossing) {
    routes.push_back({key, from, to, exports[from]++, imports[to]++});
  }
  return routes;
}

}  // namespace gpipe::internal
