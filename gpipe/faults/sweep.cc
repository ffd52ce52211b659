#include "gpipe/faults/sweep.h"

#include <gtest/gtest.h>

#include <atomic>

#include "gpipe/faults/places.h"
#include "gpipe/phase.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/models.h"
#include "gpipe/testing/rounds.h"

namespace gpipe::faults {

void Sweep::operator+=(const Sweep& other) {
  failed += other.failed;
  thrown += other.thrown;
  absorbed += other.absorbed;
  in_cells += other.in_cells;
  unnamed += other.unnamed;
  misnamed += other.misnamed;
  leaks += other.leaks;
  wrong += other.wrong;
}

std::vector<std::string> Sweep::header() {
  return {"",        "failed",   "in cells", "thrown", "absorbed",
          "unnamed", "misnamed", "leaks",    "wrong"};
}

std::vector<std::string> Sweep::row(const std::string& name) const {
  std::vector<std::string> row{name};
  for (const int64_t each :
       {failed, in_cells, thrown, absorbed, unnamed, misnamed, leaks, wrong}) {
    row.push_back(std::to_string(each));
  }
  return row;
}

Sweep sweep(Trial& trial, instruments::FailNth& failing, const Settle& settle,
            bool late) {
  Sweep sweep;
  // Each sweep begins at another operation. In different settings, the numbers
  // of the same operation may differ by a multiple of the stride (186, 228,
  // 270).
  const int64_t stride = testing::rounds(3, 1);
  static int64_t sweeps = 0;
  for (int64_t at = sweeps++ % stride;; at += stride) {
    const Thrown kind = at % 2 == 0 ? Thrown::kOutOfMemory : Thrown::kBadAlloc;
    std::atomic<int64_t> microbatch{-1};
    const auto fail = [&] {
      microbatch = current_microbatch().value_or(-1);
      throw_it(kind);
    };
    int64_t count = 0;
    bool ended = false;
    testing::StepState state;
    std::string error = testing::error_of([&] {
      state = trial.step([&] { failing.arm(at, fail); },
                         [&] {
                           count = failing.disarm();
                           ended = true;
                         });
    });
    if (!ended) count = failing.disarm();
    const std::string later = settle();
    if (count <= at) {
      EXPECT_EQ(error + later, "");
      EXPECT_EQ(difference(state, trial.undisturbed()), "");
      return sweep;
    }

    ++sweep.failed;
    std::string text;
    const bool in_cell = microbatch >= 0;
    if (in_cell) ++sweep.in_cells;
    if (!error.empty()) {
      ++sweep.thrown;
      const auto failure = trial.pipeline()->last_failure();
      if (!failure) ++sweep.unnamed;
      const bool named_right = failure &&
                               (late || failure->microbatch == microbatch) &&
                               (late || error == text_of(kind, *failure));
      if (in_cell && !named_right) {
        ++sweep.misnamed;
        text += error + ", " +
                (failure ? failure->place() : std::string("without a place")) +
                ", of micro-batch " + std::to_string(microbatch) + "; ";
      }
    } else if (later.empty()) {
      ++sweep.absorbed;
      const std::string differs = difference(state, trial.undisturbed());
      if (!differs.empty()) {
        ++sweep.wrong;
        text += "no error, but another " + differs + "; ";
      }
    }
    state = {};
    const Residue residue = trial.residue(late);
    if (residue.leak) ++sweep.leaks;
    if (residue.wrong) ++sweep.wrong;
    text += residue.text;
    if (!text.empty()) {
      ADD_FAILURE() << "operation " << at << ": " << text << "after '" << error
                    << "', '" << later << "'";
    }
    if (sweep.misnamed + sweep.leaks + sweep.wrong > 20) {
      ADD_FAILURE() << "and so on";
      return sweep;
    }
  }
}

}  // namespace gpipe::faults
