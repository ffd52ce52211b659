#include "gpipe/runtime/step/pipeline.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <unordered_map>

#include "gpipe/base/threads.h"
#include "gpipe/runtime/autograd/gradients.h"
#include "gpipe/runtime/cell/phase_scope.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/device/test_hooks.h"
#include "gpipe/runtime/step/autograd_node.h"
#include "gpipe/runtime/step/passes.h"
#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/schedule/transform.h"

namespace gpipe::internal {
// The backward of a step, called by the caller's autograd graph.
class StepBackward {
 public:
  StepBackward(std::shared_ptr<Pipeline> pipeline, std::shared_ptr<Step> step,
               const Schedule& schedule)
      : pipeline_(std::move(pipeline)),
        step_(std::move(step)),
        schedule_(schedule) {}

  // Ends the forward. Call after all other work of forward(), including the
  // BatchNorm statistics, which recomputes read. Backward may be called on
  // other streams than forward; the events recorded here make it run after the
  // forward's work.
  void end_forward() {
    for (const Partition& each : pipeline_->stages_.partitions) {
      if (has_streams(each.device) && !forward_done_.count(each.device)) {
        forward_done_.emplace(each.device, Event::record(each.device));
      }
    }
  }

  void add_leaves(std::vector<SharedLeaf> leaves) {
    leaves_ = std::move(leaves);
    for (const SharedLeaf& each : leaves_) changes_.watch(each.tensor);
    for (const Partition& partition : pipeline_->stages_.partitions) {
      for (const at::Tensor& each : partition.modules.parameters()) {
        if (!each.requires_grad()) changes_.watch(each);
      }
    }
  }

  std::vector<at::Tensor> backward(std::vector<at::Tensor> grads,
                                   const std::vector<bool>& wanted,
                                   bool keep_graph) {
    const auto running = pipeline_->executor_.enter(/*with_backward=*/true);
    pipeline_->executor_.set_failure(std::nullopt);
    const WorkScope work;
    // Without keep_graph the backward consumes the cells, even if it fails
    // halfway.
    const std::shared_ptr<Step> step =
        keep_graph ? step_ : std::exchange(step_, nullptr);
    TORCH_CHECK(step != nullptr, torch::autograd::ERR_BACKWARD_TWICE);
    const Failure place = at_partition(Failure::kAll, Phase::kGradients);
    auto pieces = pipeline_->executor_.outside_schedule(place, [&] {
      const at::Tensor* const changed = changes_.without_version();
      TORCH_CHECK(!changed, pipeline_->stages_.describe_leaf(*changed),
                  " has been changed between forward and backward, as by the "
                  "step() of an optimizer. Call step() after backward(), or "
                  "forward() again");
      for (const auto& [device, event] : forward_done_) event.wait(device);
      return split(std::move(grads));
    });
    const auto first_leaf = wanted.begin() + inputs.size();
    StepPass::Options options;
    options.input_wanted =
        std::find(wanted.begin(), first_leaf, true) != first_leaf;
    options.keep_graph = keep_graph;
    for (const auto& leaves : step->leaves) {
      options.leaf_wanted.emplace_back(leaves.list.size());
    }
    for (std::size_t n = 0; n < leaves_.size(); ++n) {
      if (!first_leaf[n]) continue;
      for (const auto& [partition, number] : leaves_[n].places) {
        options.leaf_wanted[partition][number] = true;
      }
    }
    StepPass pass(pipeline_->stages_, *step, std::move(options));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      pass.begin_backward(i, std::move(pieces[i]));
    }
    try {
      pipeline_->executor_.run(schedule_, pass);
    } catch (c10::Error& error) {
      explain(error);
      throw;
    }

    return pipeline_->executor_.outside_schedule(place, [&] {
      std::vector<at::Tensor> result;
      for (std::size_t n = 0; n < inputs.size(); ++n) {
        result.push_back(wanted[n] ? inputs[n].join(pass.input_grads())
                                   : at::Tensor());
      }
      for (at::Tensor& grad : pass.take_leaf_grads(leaves_)) {
        result.push_back(std::move(grad));
      }
      separate(result);
      return result;
    });
  }

  // The elements of the input that need a gradient, and those of the output
  // that have a graph.
  std::vector<Element> inputs, outputs;
  // The number of output tensors of each micro-batch.
  std::vector<std::size_t> widths;

 private:
  // Adds the name of a changed leaf to autograd's error about a change, which
  // has only the sizes.
  void explain(c10::Error& error) const {
    const at::Tensor* const changed = changes_.with_version();
    if (!changed || error.msg().find("modified by an inplace operation") ==
                        std::string::npos) {
      return;
    }
    error.add_context(pipeline_->stages_.describe_leaf(*changed) +
                      " has been changed between forward and backward, as by "
                      "the step() of an optimizer; call step() after "
                      "backward(), or forward() again");
  }

  // Returns the gradients of the outputs, by micro-batch and tensor.
  std::vector<std::vector<at::Tensor>> split(std::vector<at::Tensor> grads) {
    std::vector<std::vector<at::Tensor>> pieces;
    for (const std::size_t width : widths) pieces.emplace_back(width);
    for (std::size_t n = 0; n < outputs.size(); ++n) {
      if (grads[n].defined()) outputs[n].split(std::move(grads[n]), pieces);
    }
    return pieces;
  }

  std::shared_ptr<Pipeline> pipeline_;
  std::shared_ptr<Step> step_;
  const Schedule& schedule_;  // the second half
  std::unordered_map<c10::Device, Event> forward_done_;
  std::vector<SharedLeaf> leaves_;
  LeafChanges changes_;
};

namespace {

// Adds the tensors of `output` that need a graph to `backward`, and returns
// them. `made`: what the last partition made, by micro-batch. `pieces`: its
// tensors.
std::vector<at::Tensor> add_outputs(StepBackward& backward,
                                    const std::vector<Activations>& made,
                                    const std::vector<Value>& pieces,
                                    const Batch& output) {
  std::vector<std::size_t> widths;
  for (const Value& piece : pieces) widths.push_back(piece.tensors().size());
  std::vector<at::Tensor> with_edges;
  if (output.split()) {
    for (std::size_t i = 0; i < made.size(); ++i) {
      for (std::size_t k = 0; k < widths[i]; ++k) {
        if (!made[i].boundary[k].requires_grad) continue;
        backward.outputs.push_back(
            Element::of_part(static_cast<int64_t>(i), k));
        with_edges.push_back(output.values()[i].tensors()[k]);
      }
    }
  } else {
    for (std::size_t k = 0; k < widths.front(); ++k) {
      const bool has_graph =
          std::ranges::any_of(made, [&](const Activations& each) {
            return each.boundary[k].requires_grad;
          });
      if (!has_graph) continue;
      backward.outputs.emplace_back(k, pieces);
      with_edges.push_back(output.whole().tensors()[k]);
    }
  }
  backward.widths = std::move(widths);
  return with_edges;
}

}  // namespace

Pipeline::Pipeline(std::vector<Partition> partitions, Unsplit unsplit,
                   std::vector<int> rank_of_stage,
                   std::vector<c10::Device> devices, int threads,
                   bool one_at_a_time)
    : stages_(std::move(partitions), std::move(rank_of_stage),
              std::move(unsplit)),
      executor_(std::move(devices), threads, one_at_a_time) {}

Batch Pipeline::forward(const Batch& input, int64_t chunks,
                        const std::function<Checkpoint()>& checkpoint) {
  const auto running = executor_.enter();
  executor_.set_failure(std::nullopt);
  const WorkScope work;
  const bool with_graph = c10::GradMode::is_enabled();
  const MiniBatch batch =
      executor_.outside_schedule(at_partition(0, Phase::kScatter), [&] {
        std::vector<int64_t> rows;
        if (!input.split()) {
          rows = chunk_rows(rows_of(input.whole(), stages_.unsplit), chunks);
        }
        return MiniBatch(input, std::move(rows), stages_.unsplit, with_graph);
      });
  stages_.warn_of_split_time(batch);
  const int64_t microbatches = batch.microbatches();
  const int64_t checkpointed =
      with_graph ? checkpointed_microbatches(checkpoint(), microbatches) : 0;
  const Halves& halves = this->halves(microbatches, checkpointed);

  std::vector<torch::autograd::Edge> accumulators;
  if (with_graph) accumulators = accumulators_of(stages_.partitions);
  auto step = std::make_shared<Step>(
      stages_, microbatches,
      [&](int64_t, int64_t microbatch) { return microbatch < checkpointed; });
  std::optional<PastBuffers> norms_of_now = unrestored_norms();
  MiniBatchNorms norms(stages_.partitions);
  StepPass pass(stages_, *step, {});
  pass.begin_forward(batch.activations(), batch.leaf());
  executor_.run(halves.forward, pass);
  step->seed.leave_layer();

  return executor_.outside_schedule(
      at_partition(stages_.size() - 1, Phase::kGather), [&] {
        fault_point("gather", stages_.size() - 1);
        std::vector<Value> outputs;
        for (const Activations& each : pass.outputs()) {
          outputs.push_back(value_of(each, stages_.partitions.back().device));
        }
        Batch output = batch.split() ? Batch(outputs) : Batch(gather(outputs));
        if (!batch.split()) warn_of_other_rows(outputs, batch.rows());
        norms.prepare();
        if (!with_graph) {
          norms.write();
          if (norms_of_now) norms_of_now->restore();
          norms.keep();
          step->seed.keep();
          return output;
        }

        std::vector<SharedLeaf> leaves = step->shared_leaves();
        std::vector<torch::autograd::Edge> edges;
        auto backward = std::make_shared<StepBackward>(shared_from_this(), step,
                                                       halves.backward);
        for (auto& [tensor, element] : batch.wanted()) {
          backward->inputs.push_back(std::move(element));
          edges.push_back(torch::autograd::impl::gradient_edge(tensor));
        }
        for (const SharedLeaf& leaf : leaves) {
          edges.push_back(torch::autograd::impl::gradient_edge(leaf.tensor));
        }
        backward->add_leaves(std::move(leaves));
        std::vector<at::Tensor> with_edges =
            add_outputs(*backward, pass.outputs(), outputs, output);
        if (!with_edges.empty()) {
          attach_graph(with_edges, std::move(edges),
                       std::bind_front(&StepBackward::backward, backward));
        }
        batch.refuse_changed();
        norms.write();
        if (norms_of_now) norms_of_now->restore();
        backward->end_forward();
        norms.keep();
        step->seed.keep();
        return output;
      });
}

std::optional<PastBuffers> Pipeline::unrestored_norms() const {
  const PhaseInfo* const phase = current_phase();
  if (!phase || !phase->recomputing) return std::nullopt;
  std::vector<at::Tensor> buffers;
  for (const Partition& each : stages_.partitions) {
    std::ranges::copy_if(each.modules.norm_buffers(),
                         std::back_inserter(buffers),
                         std::not_fn(&PastBuffers::has));
  }
  return std::optional<PastBuffers>(std::in_place, copy_values(buffers));
}

const Pipeline::Halves& Pipeline::halves(int64_t microbatches,
                                         int64_t checkpointed) {
  const std::pair key(microbatches, checkpointed);
  const auto known = halves_.find(key);
  if (known != halves_.end()) return known->second;
  const Schedule schedule = with_recompute(
      breadth_first(stages_.rank_of_stage, static_cast<int>(microbatches)),
      [&](int i) { return i < checkpointed; });
  const auto is_forward = [](const Action& action) {
    return action.kind == ActionKind::kForward;
  };
  return halves_
      .emplace(key, Halves{select(schedule, is_forward),
                           select(schedule, std::not_fn(is_forward))})
      .first->second;
}

const Schedule& Pipeline::checked_schedule(const Schedule& schedule,
                                           Checkpoint checkpoint) {
  return train_schedules_.get(schedule, checkpoint, [&] {
    const std::vector<c10::Device>& devices = executor_.devices();
    const std::vector<int> placed =
        check_schedule(schedule, stages_.size(),
                       static_cast<int64_t>(devices.size()), "GPipeOptions");
    for (std::size_t s = 0; s < placed.size(); ++s) {
      TORCH_CHECK_VALUE(
          devices[placed[s]] == stages_.partitions[s].device,
          "the schedule has stage ", s, " on rank ", placed[s], " (",
          devices[placed[s]], "), but partition ", s, " is on ",
          stages_.partitions[s].device,
          "; make the pipeline with the schedule's GPipeOptions::placement");
    }
    return with_checkpoint(schedule, checkpoint);
  });
}

}  // namespace gpipe::internal
