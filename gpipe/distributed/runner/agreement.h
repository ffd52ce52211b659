// What all ranks agree on when a step begins and ends.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/distributed/runner/layout.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/runtime/step/loss_totals.h"
#include "gpipe/runtime/step/train_step.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/train.h"

namespace gpipe::internal {

// The arguments that one rank was given for a step.
struct StartReport {
  // Whether this rank refuses the step, and the text of its exception.
  bool refused = false;
  std::string refusal;
  // CRC-32C of the schedule's text.
  uint32_t schedule = 0;
  // Whether the schedule has backwards.
  bool with_backward = false;
  // Whether the pipeline is in training mode on this rank.
  bool training = false;
  // Whether this rank has the last stage and computes a loss.
  bool has_loss = false;
  // On the first rank of a pipeline the rows of the input, on its last rank
  // those of the target; -1 if this rank has neither.
  int64_t rows = -1;
  // Whether this input, or else the target of a loss, is given as Microbatches.
  bool split = false;
  // Whether layers have other parameters than when all replicas last got those
  // of replica 0.
  bool has_new_parameters = false;
  // The seed of the step's random numbers, if this rank has the first stage.
  uint64_t seed = 0;

  // Returns this report as bytes.
  std::string encode() const;
  // Returns the report in `bytes`. Throws c10::Error if the number of bytes
  // does not fit the content.
  static StartReport decode(const std::string& bytes);
};

// A rank that was given something that does not fit, and what that is.
struct RowMismatch {
  int rank = 0;
  std::string what;
};

// Returns the first last rank of a pipeline whose target does not fit the input
// of the first rank; nullopt if all fit.
// `all`: by rank of the world; none has refused the step.
// `layout`: its own rank is not used.
std::optional<RowMismatch> find_other_rows(const std::vector<StartReport>& all,
                                           const RankLayout& layout);

// Two ranks that were given different schedules or are in different modes.
struct OtherRank {
  // `rank` differs from `most`, whose schedule or mode the most ranks have.
  int rank = 0, most = 0;
};

// Returns the first rank with another schedule than the most common one;
// nullopt if all are equal. Of two that are equally common, the one of the
// lower rank counts. If no schedule has backwards, only the ranks of one
// replica are compared: replicas then exchange nothing but totals, and may have
// other numbers of micro-batches.
// `all`: by rank of the world. `layout`: its own rank is not used.
std::optional<OtherRank> find_other_schedule(
    const std::vector<StartReport>& all, const RankLayout& layout);
// Does the same for training and evaluation mode.
std::optional<OtherRank> find_other_mode(const std::vector<StartReport>& all,
                                         const RankLayout& layout);

// The results of one rank's part of a step.
struct EndReport {
  bool drew = false;  // whether the step drew random numbers
  int replica = 0;
  // As scalars on the host. No losses unless the rank has the last stage.
  LossTotals totals;
  // The dtypes of the losses in `totals`.
  std::vector<at::ScalarType> types;

  // See StartReport.
  std::string encode() const;
  static EndReport decode(const std::string& bytes);
};

// The exchanges of all ranks around a step. An argument that is wrong on one
// rank must not end the world. So all ranks compare what they were given before
// a step begins. If it does not fit, all throw, and the next step works.
//
// Not thread-safe.
class StepAgreement {
 public:
  // `tag`: of the exchanges.
  StepAgreement(Communicator& world, const RankLayout& layout, int tag)
      : world_(world), layout_(layout), tag_(tag) {}

  void reset() { is_refused_ = false; }
  // Returns whether all ranks throw the same exception, or a PeerError because
  // of it, so that the world has not failed.
  bool is_refused() const { return is_refused_; }

  // Blocks until all ranks have called, and returns what they were given, by
  // rank of the world. Throws on all ranks, with is_refused(), if a rank has
  // refused the step, or if modes, schedules or rows differ.
  // `refusal`: null unless this rank refuses. `schedule`: null if it does.
  // `action`: see all_gather().
  std::vector<StartReport> begin(const StartReport& mine,
                                 const std::exception_ptr& refusal,
                                 const Schedule* schedule,
                                 const std::string& action);

  // Returns the totals of all ranks, and adds the losses of this replica to
  // `result`. Throws on all ranks, with is_refused(), if the totals are wrong.
  LossTotals end(const TrainStep& step, StepResult& result);

 private:
  // Throws `own`, or, if it is null, `mismatch` as a PeerError with
  // Fault::kRefused. All ranks call it.
  [[noreturn]] void throw_on_all(const std::exception_ptr& own,
                                 const RowMismatch& mismatch);

  Communicator& world_;
  const RankLayout& layout_;
  const int tag_;
  bool is_refused_ = false;
};

}  // namespace gpipe::internal
