#include "gpipe/distributed/beginning.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <map>

#include "gpipe/distributed/world/bytes.h"

namespace gpipe::internal {

std::string Beginning::encode() const {
  std::string bytes;
  put(bytes, static_cast<uint8_t>(refused));
  put_text(bytes, refusal);
  put(bytes, schedule);
  put(bytes, rows);
  put(bytes, static_cast<uint8_t>(split));
  put(bytes, seed);
  return bytes;
}

Beginning Beginning::decode(const std::string& bytes) {
  Beginning beginning;
  std::size_t at = 0;
  beginning.refused = take<uint8_t>(bytes, at) != 0;
  beginning.refusal = take_text(bytes, at);
  beginning.schedule = take<uint32_t>(bytes, at);
  beginning.rows = take<int64_t>(bytes, at);
  beginning.split = take<uint8_t>(bytes, at) != 0;
  beginning.seed = take<uint64_t>(bytes, at);
  TORCH_CHECK(at == bytes.size(), "the beginning of a step has ", bytes.size(),
              " bytes, but its content takes ", at,
              "; run the same gpipe on all ranks");
  return beginning;
}

std::optional<Misfit> find_other_rows(const std::vector<Beginning>& all,
                                      const RankLayout& layout) {
  const int first = layout.rank_of_stage.front();
  const int last = layout.rank_of_stage.back();
  // A rank that has both has compared them itself.
  if (first == last) return std::nullopt;
  const auto form = [](bool split) {
    return split ? "given as Microbatches" : "one value";
  };
  for (int replica = 0; replica < layout.replicas; ++replica) {
    const int from = replica * layout.ranks + first;
    const int to = replica * layout.ranks + last;
    const Beginning &input = all[from], &target = all[to];
    if (input.rows < 0 || target.rows < 0) continue;
    if (input.split != target.split) {
      return Misfit{
          to, c10::str("the input of rank ", from, " is ", form(input.split),
                       ", but the target of rank ", to, " is ",
                       form(target.split), "; give both in the same way")};
    }
    // The rows of parts are those of the targets.
    if (input.split || input.rows == target.rows) continue;
    return Misfit{
        to, c10::str("the input of rank ", from, " has ", input.rows,
                     input.rows == 1 ? " row" : " rows",
                     ", but the target of rank ", to, " has ", target.rows,
                     "; on the last rank, pass the target that "
                     "belongs to the input of the first rank")};
  }
  return std::nullopt;
}

std::optional<OtherSchedule> find_other_schedule(
    const std::vector<Beginning>& all) {
  std::map<uint32_t, int> count;
  for (const Beginning& each : all) ++count[each.schedule];
  const auto most = std::max_element(
      all.begin(), all.end(), [&](const Beginning& a, const Beginning& b) {
        return count[a.schedule] < count[b.schedule];
      });
  const auto other = std::find_if(
      all.begin(), all.end(),
      [&](const Beginning& each) { return each.schedule != most->schedule; });
  if (other == all.end()) return std::nullopt;
  return OtherSchedule{static_cast<int>(other - all.begin()),
                       static_cast<int>(most - all.begin())};
}

}  // namespace gpipe::internal
