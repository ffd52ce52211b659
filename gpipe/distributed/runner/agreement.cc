#include "gpipe/distributed/runner/agreement.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "gpipe/distributed/error.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/exchanges.h"
#include "gpipe/runtime/operators/random.h"
#include "gpipe/schedule/text.h"

namespace gpipe::internal {
namespace {

// Appends the dtype and the value of a real scalar. Every such value fits into
// a double or an int64 without loss.
void put_scalar(std::string& bytes, const at::Tensor& scalar) {
  put(bytes, scalar.scalar_type());
  if (scalar.is_floating_point()) {
    put(bytes, scalar.item<double>());
  } else {
    put(bytes, scalar.item<int64_t>());
  }
}

at::Tensor take_scalar(const std::string& bytes, std::size_t& at) {
  const auto type = static_cast<at::ScalarType>(take<int8_t>(bytes, at));
  TORCH_CHECK(c10::isFloatingType(type) ||
                  c10::isIntegralType(type, /*includeBool=*/false),
              "the end of a step holds a number of dtype ",
              static_cast<int>(type), "; run the same gpipe on all ranks");
  const at::TensorOptions options(type);
  if (c10::isFloatingType(type)) {
    return at::scalar_tensor(take<double>(bytes, at), options);
  }
  return at::scalar_tensor(take<int64_t>(bytes, at), options);
}

std::exception_ptr value_error(const std::string& text) {
  return std::make_exception_ptr(c10::ValueError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
}

}  // namespace

std::string StartReport::encode() const {
  return pack(refused, refusal, schedule, with_backward, training, has_loss,
              rows, split, has_new_parameters, seed);
}

StartReport StartReport::decode(const std::string& bytes) {
  StartReport report;
  std::size_t at = 0;
  unpack(bytes, at, report.refused, report.refusal, report.schedule,
         report.with_backward, report.training, report.has_loss, report.rows,
         report.split, report.has_new_parameters, report.seed);
  TORCH_CHECK(at == bytes.size(), "the beginning of a step has ", bytes.size(),
              " bytes, but its content takes ", at,
              "; run the same gpipe on all ranks");
  return report;
}

std::optional<RowMismatch> find_other_rows(const std::vector<StartReport>& all,
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
    const StartReport &input = all[from], &target = all[to];
    if (!target.has_loss) continue;
    if (input.split != target.split) {
      return RowMismatch{
          to, c10::str("the input of rank ", from, " is ", form(input.split),
                       ", but the target of rank ", to, " is ",
                       form(target.split), "; give both in the same way")};
    }
    // The rows of parts are those of the targets. A target without tensors has
    // none.
    if (input.split || target.rows < 0 || input.rows == target.rows) continue;
    return RowMismatch{
        to, c10::str("the input of rank ", from, " has ", input.rows,
                     input.rows == 1 ? " row" : " rows",
                     ", but the target of rank ", to, " has ", target.rows,
                     "; on the last rank, pass the target that "
                     "belongs to the input of the first rank")};
  }
  return std::nullopt;
}

namespace {

// See find_other_schedule(). `member`: what is compared.
template <typename Member>
std::optional<OtherRank> find_other(const std::vector<StartReport>& all,
                                    const RankLayout& layout,
                                    Member StartReport::*member) {
  const bool all_equal = std::ranges::any_of(all, &StartReport::with_backward);
  const auto size = static_cast<std::ptrdiff_t>(
      all_equal ? all.size() : static_cast<std::size_t>(layout.ranks));
  for (auto begin = all.begin(); begin != all.end(); begin += size) {
    const auto end = begin + size;
    std::map<Member, int> count;
    for (auto each = begin; each != end; ++each) ++count[(*each).*member];
    const auto most = std::max_element(
        begin, end, [&](const StartReport& a, const StartReport& b) {
          return count[a.*member] < count[b.*member];
        });
    const auto other = std::find_if(begin, end, [&](const StartReport& each) {
      return each.*member != (*most).*member;
    });
    if (other == end) continue;
    return OtherRank{static_cast<int>(other - all.begin()),
                     static_cast<int>(most - all.begin())};
  }
  return std::nullopt;
}

}  // namespace

std::optional<OtherRank> find_other_schedule(
    const std::vector<StartReport>& all, const RankLayout& layout) {
  return find_other(all, layout, &StartReport::schedule);
}

std::optional<OtherRank> find_other_mode(const std::vector<StartReport>& all,
                                         const RankLayout& layout) {
  return find_other(all, layout, &StartReport::training);
}

std::string EndReport::encode() const {
  std::string bytes =
      pack(drew, replica, static_cast<uint64_t>(totals.losses.size()));
  for (std::size_t k = 0; k < totals.losses.size(); ++k) {
    bytes += pack(types[k], totals.losses[k]);
  }
  if (totals.losses.empty()) return bytes;
  put(bytes, totals.weighted);
  put_scalar(bytes, totals.sum);
  bytes += pack(totals.weight, static_cast<uint64_t>(totals.metrics.size()));
  for (const auto& [name, value] : totals.metrics) {
    put(bytes, name);
    put_scalar(bytes, value);
  }
  return bytes;
}

EndReport EndReport::decode(const std::string& bytes) {
  EndReport report;
  std::size_t at = 0;
  uint64_t count = 0, metrics = 0;
  unpack(bytes, at, report.drew, report.replica, count);
  // `count` is checked against a quotient, because the product may overflow.
  TORCH_CHECK(count <= bytes.size() / sizeof(double),
              "the end of a step says that it has ", count,
              " losses, for which its ", bytes.size(),
              " bytes are not the right number; run the same gpipe on all "
              "ranks");
  for (uint64_t k = 0; k < count; ++k) {
    at::ScalarType& type = report.types.emplace_back();
    unpack(bytes, at, type, report.totals.losses.emplace_back());
    TORCH_CHECK(c10::isFloatingType(type),
                "the end of a step says that a loss is of type ",
                static_cast<int>(type),
                ", which is no floating-point number; run the same gpipe on "
                "all ranks");
  }
  if (count > 0) {
    unpack(bytes, at, report.totals.weighted);
    report.totals.sum = take_scalar(bytes, at);
    unpack(bytes, at, report.totals.weight, metrics);
    for (uint64_t k = 0; k < metrics && at < bytes.size(); ++k) {
      std::string name = take_text(bytes, at);
      report.totals.metrics.emplace_back(std::move(name),
                                         take_scalar(bytes, at));
    }
  }
  TORCH_CHECK(at == bytes.size() && report.totals.metrics.size() == metrics,
              "the end of a step has ", bytes.size(), " bytes, but its ",
              metrics, " metrics and the rest take another number",
              "; run the same gpipe on all ranks");
  return report;
}

std::vector<StartReport> StepAgreement::begin(const StartReport& mine,
                                              const std::exception_ptr& refusal,
                                              const Schedule* schedule,
                                              const std::string& action) {
  std::vector<StartReport> all;
  for (const std::string& bytes :
       all_gather(world_, tag_, mine.encode(), action)) {
    all.push_back(StartReport::decode(bytes));
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].refused) continue;
    throw_on_all(refusal, {static_cast<int>(rank), all[rank].refusal});
  }
  // Before the schedules, whose recomputes depend on the mode.
  if (const auto other = find_other_mode(all, layout_)) {
    const auto mode = [&](int rank) {
      return c10::str("rank ", rank, " is in ",
                      all[rank].training ? "training" : "evaluation", " mode");
    };
    const std::string what = mode(other->rank) + ", but " + mode(other->most);
    throw_on_all(
        value_error(what +
                    "; call train(), eval() and evaluate() on all ranks"),
        {other->rank, what});
  }
  if (const auto other = find_other_schedule(all, layout_)) {
    // No rank has refused, so all have a schedule, and all come here. Only the
    // schedules of two ranks are compared.
    const bool is_compared =
        world_.rank() == other->rank || world_.rank() == other->most;
    const auto texts =
        all_gather(world_, tag_, is_compared ? to_csv(*schedule) : "",
                   "comparing the schedules of a step");
    const auto name = [](int rank) {
      return "the schedule of rank " + std::to_string(rank);
    };
    const std::string what = describe_difference(
        parse_schedule(texts[other->rank]), name(other->rank),
        parse_schedule(texts[other->most]), name(other->most));
    throw_on_all(value_error("the ranks were given different schedules: " +
                             what + "; give all ranks the same schedule"),
                 {other->rank, what});
  }
  if (const auto mismatch = find_other_rows(all, layout_)) {
    const bool own = mismatch->rank == world_.rank();
    throw_on_all(own ? value_error(mismatch->what) : nullptr, *mismatch);
  }
  return all;
}

LossTotals StepAgreement::end(const TrainStep& step, StepResult& result) {
  EndReport mine;
  mine.drew = step.drew();
  mine.replica = layout_.replica;
  mine.totals = step.totals();
  for (const at::Tensor& each : result.losses) {
    mine.types.push_back(each.scalar_type());
  }

  bool drew = false;
  const c10::AutoGradMode no_graph(false);
  std::vector<EndReport> all;
  for (const std::string& bytes :
       all_gather(world_, tag_, mine.encode(), "the end of a step")) {
    const EndReport& each = all.emplace_back(EndReport::decode(bytes));
    drew = drew || each.drew;
    if (each.replica != layout_.replica || layout_.has_last()) continue;
    for (std::size_t k = 0; k < each.types.size(); ++k) {
      result.losses.push_back(at::scalar_tensor(
          each.totals.losses[k], at::TensorOptions(each.types[k])));
    }
  }
  LossTotals totals;
  is_refused_ = true;  // all ranks have the same totals
  try {
    for (const EndReport& each : all) totals.add(each.totals);
    totals.check();
  } catch (...) {
    meet(world_, world_.all_ranks(), tag_, "the end of a refused step");
    throw;
  }
  is_refused_ = false;
  // One process would have drawn the seed from the default generator, too, but
  // not for a refused step.
  if (drew) StepSeed::draw();
  if (layout_.has_last() && totals.sum.defined()) {
    result.loss = result.losses.back();  // for its device
  }
  return totals;
}

void StepAgreement::throw_on_all(const std::exception_ptr& own,
                                 const RowMismatch& mismatch) {
  is_refused_ = true;
  meet(world_, world_.all_ranks(), tag_, "the end of a refused step");
  if (own) std::rethrow_exception(own);
  throw_peer_error(
      {Fault::kRefused, mismatch.rank, mismatch.rank, "", mismatch.what},
      world_.rank());
}

}  // namespace gpipe::internal
