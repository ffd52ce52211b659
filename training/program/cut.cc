#include "training/program/cut.h"

#include <ATen/Parallel.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <numeric>
#include <utility>

#include "balancing/profile/threads_scope.h"
#include "gpipe/base/devices.h"
#include "gpipe/base/text.h"
#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"
#include "training/program/offload_option.h"

namespace gpipe::train_program {
namespace {

std::vector<int64_t> balance_of(const Options& options,
                                const CutSources& sources, int64_t stages,
                                int64_t micro_rows) {
  const auto layers = static_cast<int64_t>(sources.model->size());
  TORCH_CHECK_VALUE(stages <= layers, stages,
                    " stages are more than the model's ", layers,
                    " layers; use fewer --partitions or --stages_per_rank");
  if (auto listed = listed_balance(options, stages, layers, "stages")) {
    return *std::move(listed);
  }
  if (static_cast<int64_t>(sources.before.size()) == stages) {
    return sources.before;
  }
  if (stages == 1) return {layers};
  if (options.balance == "size") {
    return sources.input(sources.rows).with_input([&](const auto& input) {
      return balancing::balance_by_size(
          stages, sources.model, input,
          balancing::SizeOptions().chunks(options.chunks).param_scale(4));
    });
  }
  const Sample sample = sources.input(micro_rows);
  const c10::Device device = sample.input.device();
  const auto autocast = sources.precision.scope(device.type());
  const auto times = balancing::TimeOptions().timeout(1.0).device(device);
  const balancing::ThreadsScope threads(
      options.threads > 0 ? options.threads : at::get_num_threads());
  return sample.with_input([&](const auto& input) {
    if (!sources.make) {
      return balancing::balance_by_time(stages, sources.model, input, times);
    }
    return balancing::balance_by_time(stages, layers, sources.make, input,
                                      times);
  });
}

// Returns the ranks that offload if --offload is auto.
std::vector<int64_t> automatic_ranks(const Options& options,
                                     const CutSources& sources, const Cut& cut,
                                     int64_t micro_rows) {
  const auto plain = ranks_to_offload(sources.devices, {});
  if (plain.empty()) return {};
  std::vector<double> predicted;
  try {
    predicted = predicted_bytes(
        cut.schedule, parse_checkpoint(options.checkpoint), cut.balance,
        sources.input(micro_rows).with_input([&](const auto& input) {
          return balancing::profile_memory(sources.model, input);
        }));
  } catch (const c10::Error&) {
    return plain;  // a layer cannot run without memory
  }
  return ranks_to_offload(sources.devices, predicted);
}

}  // namespace

std::optional<std::vector<int64_t>> listed_balance(const Options& options,
                                                   int64_t parts,
                                                   int64_t layers,
                                                   const std::string& kind) {
  if (options.balance == "time" || options.balance == "size") {
    return std::nullopt;
  }
  auto balance = with_value_error(
      [&] { return parse_numbers("balance", options.balance); });
  const auto sum = std::accumulate(balance.begin(), balance.end(), int64_t{0});
  TORCH_CHECK_VALUE(
      static_cast<int64_t>(balance.size()) == parts && sum == layers,
      "--balance=", options.balance, " is ", balance.size(), " ", kind,
      " with ", sum, " layers; there are ", parts, " ", kind, " and ", layers,
      " layers (or use time or size)");
  return balance;
}

Cut make_cut(const Options& options, const CutSources& sources) {
  TORCH_CHECK_VALUE(options.chunks > 0, "--chunks=", options.chunks,
                    ": must be at least 1");
  TORCH_CHECK_VALUE(options.stages_per_rank > 0,
                    "--stages_per_rank=", options.stages_per_rank,
                    ": must be at least 1");
  TORCH_CHECK_VALUE(options.schedule != "forward-only",
                    "--schedule=", options.schedule, " does not train");
  TORCH_CHECK_VALUE(options.accumulate > 0, "--accumulate=", options.accumulate,
                    ": must be at least 1");
  // A step splits its --accumulate mini-batches as one large mini-batch.
  const int64_t micro_batches = num_microbatches(
      sources.rows * options.accumulate, options.chunks * options.accumulate);
  const auto fixed = fixed_stages_per_rank(options.schedule);
  Cut cut;
  cut.chunks = options.chunks;
  cut.checkpoint = parse_checkpoint(options.checkpoint);
  cut.stages_per_rank = fixed.value_or(options.stages_per_rank);
  cut.schedule = named_schedule(
      options.schedule, static_cast<int>(sources.ranks),
      static_cast<int>(micro_batches), static_cast<int>(cut.stages_per_rank));
  const std::vector<int> ranks = rank_of_stage(cut.schedule);
  const auto stages = static_cast<int64_t>(ranks.size());
  if (stages > sources.ranks && ranks.back() == 0) {
    cut.placement = Placement::kV;
  }
  const int64_t micro_rows = rows_per_microbatch(sources.rows, options.chunks);
  const std::string balance = sources.of_first([&] {
    return absl::StrJoin(balance_of(options, sources, stages, micro_rows), ",");
  });
  cut.balance = parse_numbers("balance", balance);
  cut.schedule = with_offload_option(cut.schedule, options.offload, [&] {
    const std::string found = sources.of_first([&] {
      return absl::StrJoin(automatic_ranks(options, sources, cut, micro_rows),
                           ",");
    });
    return found.empty() ? std::vector<int64_t>()
                         : parse_numbers("offload", found);
  });
  return cut;
}

}  // namespace gpipe::train_program
