#include "gpipe/system_tests/trial.h"

#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "gpipe/base/devices.h"
#include "gpipe/base/instruments.h"
#include "gpipe/failure.h"
#include "gpipe/phase.h"
#include "gpipe/runtime/device/test_hooks.h"
#include "gpipe/schedule/named.h"
#include "gpipe/skip.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/system_tests/places.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"
#include "gpipe/testing/process.h"

namespace gpipe::faults {
namespace {

using instruments::CountingAllocator;
using testing::device;
using testing::StepState;
using torch::Tensor;

constexpr int64_t kLayers = 4, kWidth = 3, kRowsEach = 2;

int64_t microbatch() { return current_microbatch().value_or(-1); }

struct LayerImpl : torch::nn::Module, Skippable {
  LayerImpl(int64_t index, int64_t partition)
      : Skippable({index == 0 ? Name{"skip"} : Name{},
                   index == kLayers - 1 ? Name{"skip"} : Name{}}),
        index(index),
        partition(partition),
        linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {
    if (index == 1) {
      norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
    }
    to(torch::kDouble);
  }
  Tensor forward(Tensor x) {
    internal::fault_point("layer", partition, microbatch());
    if (index == kLayers - 1) x = x + *pop("skip");
    x = linear(x).tanh();
    if (norm) x = norm(x);
    if (index == 2) x = torch::dropout(x, 0.3, is_training());
    if (index == 0) stash("skip", x);
    return testing::on_backward(x, [at = partition](Tensor grad) {
      internal::fault_point("layer's backward", at, microbatch());
      return grad;
    });
  }

  using Name = std::vector<std::string>;
  const int64_t index, partition;
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Layer);

// Returns all devices of the test's variant, or none for the CPU.
std::vector<c10::Device> accelerators() {
  if (device().is_cpu()) return {};
  return all_devices();
}

}  // namespace

std::string Setting::describe() const {
  return (schedule.empty() ? "forward and backward" : schedule) + ", " +
         std::to_string(ranks) + " x " + std::to_string(stages_per_rank) +
         " partitions, " + std::to_string(microbatches) + " micro-batches, " +
         to_string(mode) + (deferred_batch_norm ? ", deferred BatchNorm" : "") +
         (offload ? ", offload" : "");
}

std::vector<Setting> settings(const std::vector<std::string>& schedules) {
  std::vector<Setting> all;
  for (const std::string& schedule : schedules) {
    for (const int stages_per_rank : {1, 2}) {
      for (int ranks = 1; ranks * stages_per_rank <= kLayers; ++ranks) {
        for (const int microbatches : {1, 2, 3, 5}) {
          if (schedule.empty()) {
            if (stages_per_rank > 1) continue;
          } else {
            const auto fixed = fixed_stages_per_rank(schedule);
            // Without interleaving, these settings are equal to others of the
            // list.
            if (fixed.value_or(2) != stages_per_rank) continue;
            if (!testing::schedule_of(schedule, ranks, microbatches,
                                      stages_per_rank)) {
              continue;
            }
          }
          for (const Checkpoint mode :
               {Checkpoint::kNever, Checkpoint::kExceptLast,
                Checkpoint::kAlways}) {
            Setting setting;
            setting.schedule = schedule;
            setting.ranks = ranks;
            setting.stages_per_rank = stages_per_rank;
            setting.microbatches = microbatches;
            setting.mode = mode;
            setting.deferred_batch_norm = all.size() % 2 == 1;
            setting.offload = !schedule.empty() && microbatches % 3 == 2;
            all.push_back(setting);
          }
        }
      }
    }
  }
  return all;
}

Trial::Trial(const Setting& setting) : setting_(setting) {
  instruments::CountingAllocator::install();
  const int stages = setting.stages();
  if (!setting.schedule.empty()) {
    schedule_ = named_schedule(setting.schedule, setting.ranks,
                               setting.microbatches, setting.stages_per_rank);
    if (setting.offload) {
      schedule_ = with_offload(*schedule_, [](int, int) { return true; });
    }
  }
  torch::manual_seed(1);
  const auto balance = testing::cut(kLayers, stages);
  torch::nn::Sequential model;
  for (int64_t j = 0; j < stages; ++j) {
    for (int64_t k = 0; k < balance[j]; ++k) {
      model->push_back(Layer(model->size(), j));
    }
  }
  GPipeOptions options =
      schedule_ ? testing::options_for(*schedule_, kLayers, setting.mode)
                : testing::options(balance, setting.microbatches, setting.mode)
                      .threads_per_partition(1);
  pipeline_ = GPipe(model, options.chunks(setting.microbatches)
                               .deferred_batch_norm(setting.deferred_batch_norm)
                               .one_at_a_time(setting.one_at_a_time));
  input_ = torch::randn({kRowsEach * setting.microbatches, kWidth},
                        torch::dtype(torch::kDouble));
  target_ = torch::randn_like(input_);
  for (const Tensor& each : pipeline_->buffers()) {
    buffers_.push_back(each.detach().clone());
  }
  step();  // creates what is created only once
  undisturbed_ = step();
  restore();
  bytes_ = live_bytes();
  threads_ = thread_count();
}

void Trial::restore() {
  pipeline_->zero_grad();
  const torch::NoGradGuard no_grad;
  const auto buffers = pipeline_->buffers();
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    Tensor buffer = buffers[k];
    buffer.copy_(buffers_[k]);
  }
  torch::manual_seed(2);
}

StepState Trial::step(const std::function<void()>& before,
                      const std::function<void()>& after) {
  restore();
  const Tensor x = input_
                       .to(pipeline_->devices().front(),
                           /*non_blocking=*/false, /*copy=*/true)
                       .requires_grad_();
  before();
  if (!schedule_) {
    const Tensor output = pipeline_->forward(x);
    output.pow(2).sum().backward();
    after();
    return testing::state_after(*pipeline_, output, x);
  }
  const int64_t last = setting_.stages() - 1;
  const StepResult result = pipeline_->train_step(
      x, target_,
      [last](const Tensor& output, const Tensor& target) {
        internal::fault_point("loss function", last, microbatch());
        return testing::mean_square(output, target);
      },
      *schedule_, TrainOptions().outputs(true));
  after();
  return testing::state_after(*pipeline_, result.output() * result.loss, x);
}

Residue Trial::residue(bool late) {
  Residue residue;
  const auto wrong = [&](const std::string& what) {
    residue.wrong = true;
    residue.text += what + "; ";
  };
  for (const Tensor& each : pipeline_->parameters()) {
    if (!late && each.grad().defined()) {
      wrong("a gradient has been left");
      break;
    }
  }
  // The statistics of a forward that succeeded stay, even if its backward
  // failed.
  const auto failure = pipeline_->last_failure();
  const bool forward_counts =
      !schedule_ && (!failure || failure->phase == Phase::kRecomputing ||
                     failure->phase == Phase::kBackward ||
                     failure->phase == Phase::kGradients);
  if (late) {
    pipeline_->zero_grad();
  } else if (setting_.deferred_batch_norm && !forward_counts) {
    const auto buffers = pipeline_->buffers();
    for (std::size_t k = 0; k < buffers.size(); ++k) {
      if (!torch::equal(buffers[k].cpu(), buffers_[k].cpu())) {
        wrong("buffer " + std::to_string(k) + " has been changed");
      }
    }
  }
  if (!settled()) {
    residue.leak = true;
    residue.text += "bytes " + c10::str(live_bytes()) + " after " +
                    c10::str(bytes_) + ", threads " +
                    thread_count().describe() + " after " +
                    threads_.describe() + "; ";
  }
  const std::string differs = difference(step(), undisturbed_);
  if (!differs.empty()) wrong("the next step has another " + differs);
  pipeline_->zero_grad();
  return residue;
}

// A joined thread is still counted for a short time. A new worker may not yet
// have the OpenMP team that the replaced worker had.
bool Trial::settled() {
  const auto is = [this] {
    return live_bytes() == bytes_ && has_as_many_threads();
  };
  for (int k = 0; k < 1000 && !is(); ++k) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return is() || has_new_host_buffers();
}

// A rank makes its two streams for offloading when it first offloads something.
// A cell offloads nothing if others hold all that it keeps. If partitions share
// a device, how long they hold it depends on the timing.
bool Trial::has_as_many_threads() const {
  const ThreadCount now = thread_count();
  const int64_t late_streams = setting_.offload ? 2 * setting_.ranks : 0;
  return now.others <= threads_.others &&
         now.streams <= threads_.streams + late_streams;
}

// Partitions of one device share their host buffers. How many of them a step
// needs at the same time depends on the timing.
bool Trial::has_new_host_buffers() {
  constexpr int64_t kBuffer = 256;  // bytes of the smallest one
  std::vector<int64_t> bytes = live_bytes();
  const int64_t more = bytes[0] - bytes_[0];
  const int64_t cells =
      setting_.offload ? setting_.stages() * setting_.microbatches : 0;
  if (more <= 0 || more % kBuffer != 0 || host_buffers_ >= cells) return false;
  ++host_buffers_;
  bytes_[0] = bytes[0];
  return bytes == bytes_ && has_as_many_threads();
}

std::vector<int64_t> live_bytes() {
  std::vector<int64_t> bytes;
  for (const c10::Device& each : accelerators()) {
    testing::settle_engine(each);
    at::accelerator::synchronizeDevice(each.index());
    bytes.push_back(instruments::live_bytes(each));
  }
  bytes.insert(bytes.begin(), instruments::live_bytes(c10::kCPU));
  return bytes;
}

ThreadCount thread_count() {
  ThreadCount count;
  for (const std::string& name : testing::thread_names()) {
    ++(name == "stream" ? count.streams : count.others);
  }
  return count;
}

std::string ThreadCount::describe() const {
  return std::to_string(others) + " and " + std::to_string(streams) +
         " of streams";
}

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
