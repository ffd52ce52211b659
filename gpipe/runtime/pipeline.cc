#include "gpipe/runtime/pipeline.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "gpipe/runtime/autograd_node.h"
#include "gpipe/runtime/microbatch.h"
#include "gpipe/runtime/stream.h"
#include "gpipe/schedule/fill_drain.h"
#include "gpipe/schedule/transform.h"

namespace gpipe {
namespace {

std::vector<c10::Device> devices_of(const std::vector<Partition>& partitions) {
  std::vector<c10::Device> devices;
  for (const Partition& each : partitions) devices.push_back(each.device);
  return devices;
}

// Makes the nodes that accumulate into `.grad` of the parameters on
// accelerators, for as long as the result lives, so that they are the caller's
// and work on the caller's streams. Else the first operator of a cell that
// needs one makes it, on the worker's.
std::vector<torch::autograd::Edge> accumulators_of(
    const std::vector<Partition>& partitions) {
  std::vector<torch::autograd::Edge> edges;
  for (const Partition& partition : partitions) {
    if (!has_streams(partition.device)) continue;
    for (const Layer& layer : partition.layers) {
      for (const at::Tensor& each : layer.module.ptr()->parameters()) {
        if (each.requires_grad()) {
          edges.push_back(torch::autograd::impl::gradient_edge(each));
        }
      }
    }
  }
  return edges;
}

// The BatchNorm statistics of a mini-batch, which has failed unless it says
// otherwise.
class MiniBatchNorms {
 public:
  explicit MiniBatchNorms(const std::vector<Partition>& partitions)
      : partitions_(partitions) {}
  ~MiniBatchNorms() {
    if (committed_) return;
    for (const Partition& each : partitions_) {
      if (each.norms) each.norms->discard();
    }
  }
  MiniBatchNorms(const MiniBatchNorms&) = delete;
  MiniBatchNorms& operator=(const MiniBatchNorms&) = delete;

  void commit() {
    committed_ = true;
    for (const Partition& each : partitions_) {
      if (each.norms) each.norms->commit();
    }
  }

 private:
  const std::vector<Partition>& partitions_;
  bool committed_ = false;
};

int64_t rows_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() > 0 ? tensor.size(0) : 0;
}

}  // namespace

// The backward of a step, as the caller's autograd graph sees it.
class StepBackward : public OpaqueBackward {
 public:
  StepBackward(std::shared_ptr<Pipeline> pipeline, std::shared_ptr<Step> step,
               const Pipeline::Plans& plans)
      : pipeline_(std::move(pipeline)), step_(std::move(step)), plans_(plans) {
    // Backward may be called on other streams than forward was. It comes after
    // what these were given up to here all the same.
    for (const Partition& each : pipeline_->stages_.partitions) {
      if (has_streams(each.device) && !forward_done_.count(each.device)) {
        forward_done_.emplace(each.device, Moment::now(each.device));
      }
    }
  }

  // Element k of the input wants a gradient.
  void add_input(std::size_t k, const at::Tensor& input,
                 const std::vector<Value>& pieces) {
    Element element{k, {}, input.sizes().vec(), input.options()};
    for (const Value& piece : pieces) {
      element.rows.push_back(rows_of(piece.tensors()[k]));
    }
    inputs_.push_back(std::move(element));
  }

  // Element k of the output has a graph.
  void add_output(std::size_t k, const std::vector<Value>& pieces) {
    Element element{k, {}, {}, {}};
    for (const Value& piece : pieces) {
      element.rows.push_back(rows_of(piece.tensors()[k]));
    }
    outputs_.push_back(std::move(element));
    output_width_ = pieces.front().tensors().size();
  }

  std::vector<at::Tensor> backward(std::vector<at::Tensor> grads,
                                   const std::vector<bool>& wanted,
                                   bool keep_graph) override {
    std::lock_guard<std::mutex> running(pipeline_->running_);
    // A backward that is not to come again uses the cells up, also if it
    // fails halfway.
    const std::shared_ptr<Step> step =
        keep_graph ? step_ : std::exchange(step_, nullptr);
    TORCH_CHECK(step != nullptr, torch::autograd::ERR_BACKWARD_TWICE);
    for (const auto& [device, moment] : forward_done_) moment.before(device);
    const auto first_leaf = wanted.begin() + inputs_.size();
    BackwardPass pass(pipeline_->stages_, *step,
                      split(std::move(grads), step->microbatches()),
                      std::find(wanted.begin(), first_leaf, true) != first_leaf,
                      std::vector<bool>(first_leaf, wanted.end()), keep_graph);
    pipeline_->run(plans_.backward, pass);

    std::vector<at::Tensor> result;
    for (std::size_t n = 0; n < inputs_.size(); ++n) {
      result.push_back(wanted[n] ? join(inputs_[n], pass.input_grads())
                                 : at::Tensor());
    }
    for (at::Tensor& grad : pass.take_leaf_grads()) {
      result.push_back(std::move(grad));
    }
    return result;
  }

  void release() override { step_.reset(); }

 private:
  struct Element {
    std::size_t index;
    std::vector<int64_t> rows;  // by micro-batch
    std::vector<int64_t> sizes;
    at::TensorOptions options;
  };

  // The gradients of the outputs, by micro-batch.
  std::vector<std::vector<at::Tensor>> split(std::vector<at::Tensor> grads,
                                             std::size_t microbatches) {
    std::vector<std::vector<at::Tensor>> pieces(
        microbatches, std::vector<at::Tensor>(output_width_));
    for (std::size_t n = 0; n < outputs_.size(); ++n) {
      if (!grads[n].defined()) continue;
      int64_t row = 0;
      for (std::size_t i = 0; i < microbatches; ++i) {
        at::Tensor& piece = pieces[i][outputs_[n].index];
        if (microbatches == 1) {
          piece = std::move(grads[n]);
        } else {
          piece = grads[n].narrow(0, row, outputs_[n].rows[i]);
          row += outputs_[n].rows[i];
        }
      }
    }
    return pieces;
  }

  // The gradient of an element of the input from those of its pieces.
  static at::Tensor join(const Element& input,
                         const std::vector<std::vector<at::Tensor>>& grads) {
    std::vector<at::Tensor> pieces;
    bool any = false;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      at::Tensor grad = grads[i].empty() ? at::Tensor() : grads[i][input.index];
      any = any || grad.defined();
      pieces.push_back(std::move(grad));
    }
    if (!any) return {};
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].defined()) {
        record_use(pieces[i], pieces[i].device());
        continue;
      }
      auto sizes = input.sizes;
      sizes[0] = input.rows[i];
      pieces[i] = at::zeros(sizes, input.options);
    }
    if (pieces.size() == 1) return pieces[0];
    return at::cat(pieces, 0);
  }

  std::shared_ptr<Pipeline> pipeline_;
  std::shared_ptr<Step> step_;
  const Pipeline::Plans& plans_;
  std::unordered_map<c10::Device, Moment> forward_done_;
  std::vector<Element> inputs_, outputs_;
  std::size_t output_width_ = 0;
};

Pipeline::Pipeline(std::vector<Partition> partitions, int threads_per_partition)
    : stages_(std::move(partitions)),
      executor_(devices_of(stages_.partitions), threads_per_partition) {}

Value Pipeline::forward(const Value& input, int64_t chunks,
                        Checkpoint checkpoint) {
  std::lock_guard<std::mutex> running(running_);
  const bool with_graph = c10::GradMode::is_enabled();
  const auto& tensors = input.tensors();
  std::vector<bool> requires_grad;
  bool leaf_input = true;
  for (const at::Tensor& tensor : tensors) {
    requires_grad.push_back(with_graph && tensor.defined() &&
                            tensor.requires_grad());
    leaf_input = leaf_input && (!tensor.defined() || tensor.is_leaf());
  }

  Value detached = input;
  for (at::Tensor& tensor : detached.tensors()) {
    if (tensor.defined()) tensor = tensor.detach();
  }
  const std::vector<Value> pieces = scatter(detached, chunks);
  const auto microbatches = static_cast<int64_t>(pieces.size());
  const int64_t checkpointed =
      with_graph ? checkpointed_microbatches(checkpoint, microbatches) : 0;
  const Plans& plans = this->plans(microbatches, checkpointed);

  std::vector<Parcel> parcels;
  for (const Value& piece : pieces) {
    Parcel& parcel = parcels.emplace_back();
    parcel.kind = piece.kind();
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      parcel.boundary.push_back({piece.tensors()[k], requires_grad[k]});
    }
  }

  std::vector<torch::autograd::Edge> accumulators;
  if (with_graph) accumulators = accumulators_of(stages_.partitions);
  auto step = std::make_shared<Step>(stages_, microbatches, checkpointed);
  MiniBatchNorms norms(stages_.partitions);
  ForwardPass pass(stages_, *step, std::move(parcels), leaf_input);
  run(plans.forward, pass);

  std::vector<Value> outputs;
  std::vector<bool> has_graph;
  for (const Parcel& parcel : pass.outputs()) {
    std::vector<at::Tensor> output;
    has_graph.resize(std::max(has_graph.size(), parcel.boundary.size()));
    for (std::size_t k = 0; k < parcel.boundary.size(); ++k) {
      const Crossing& each = parcel.boundary[k];
      record_use(each.tensor, stages_.partitions.back().device);
      output.push_back(each.tensor);
      has_graph[k] = has_graph[k] || each.requires_grad;
    }
    outputs.emplace_back(parcel.kind, std::move(output));
  }
  Value output = gather(outputs);
  norms.commit();
  if (!with_graph) return output;

  step->number_leaves();
  std::vector<torch::autograd::Edge> edges;
  auto backward =
      std::make_shared<StepBackward>(shared_from_this(), step, plans);
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    if (!requires_grad[k]) continue;
    backward->add_input(k, tensors[k], pieces);
    edges.push_back(torch::autograd::impl::gradient_edge(tensors[k]));
  }
  for (const at::Tensor& leaf : step->leaves) {
    edges.push_back(torch::autograd::impl::gradient_edge(leaf));
  }
  std::vector<at::Tensor> with_edges;
  for (std::size_t k = 0; k < has_graph.size(); ++k) {
    if (!has_graph[k]) continue;
    backward->add_output(k, outputs);
    with_edges.push_back(output.tensors()[k]);
  }
  if (!with_edges.empty()) {
    attach_graph(with_edges, std::move(edges), std::move(backward));
  }
  return output;
}

const Pipeline::Plans& Pipeline::plans(int64_t microbatches,
                                       int64_t checkpointed) {
  auto& plans = plans_[{microbatches, checkpointed}];
  if (!plans) {
    const Schedule schedule =
        with_recompute(fill_drain(static_cast<int>(stages_.size()),
                                  static_cast<int>(microbatches)),
                       [&](int i) { return i < checkpointed; });
    const auto is_forward = [](const Action& action) {
      return action.kind == Kind::kForward;
    };
    plans.reset(new Plans{Plan(select(schedule, is_forward)),
                          Plan(select(schedule, std::not_fn(is_forward)))});
  }
  return *plans;
}

void Pipeline::run(const Plan& plan, Actor& actor) {
  auto error = executor_.run(plan, actor);
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    failure_.reset();
    if (error) failure_ = error->failure;
  }
  if (error) std::rethrow_exception(error->exception);
}

std::optional<Failure> Pipeline::last_failure() const {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

}  // namespace gpipe
