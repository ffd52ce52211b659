#include "gpipe/runtime/cell/cell.h"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <functional>

#include "gpipe/libtorch/saved_tensors.h"
#include "gpipe/runtime/autograd/gradients.h"
#include "gpipe/runtime/cell/layer.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/phase_scope.h"
#include "gpipe/runtime/device/test_hooks.h"
#include "gpipe/runtime/operators/norm_statistics.h"
#include "gpipe/runtime/operators/parameter_casts.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;

bool has_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage();
}

bool has_memory(const Activation& crossing) {
  return has_memory(crossing.tensor);
}

// The distances that two views of the same strides have along a dimension.
struct Distances {
  int64_t stride, least, most;
};

// Returns whether `offset` is a sum of one distance along each dimension from
// the k-th on, times its stride. Larger strides come first.
bool is_sum(int64_t offset, const std::vector<Distances>& all, std::size_t k) {
  if (k == all.size()) return offset == 0;
  int64_t least = 0, most = 0;  // of the sum of the others
  for (std::size_t n = k + 1; n < all.size(); ++n) {
    least += all[n].least * all[n].stride;
    most += all[n].most * all[n].stride;
  }
  for (int64_t d = all[k].least; d <= all[k].most; ++d) {
    const int64_t rest = offset - d * all[k].stride;
    if (rest < least) return false;
    if (rest <= most && is_sum(rest, all, k + 1)) return true;
  }
  return false;
}

// Returns whether two views of one memory may have an element in common.
bool may_overlap(const at::Tensor& a, const at::Tensor& b) {
  const at::MemOverlapStatus status = at::get_overlap_status(a, b);
  if (status != at::MemOverlapStatus::TooHard || a.strides() != b.strides() ||
      a.scalar_type() != b.scalar_type()) {
    return status != at::MemOverlapStatus::No;
  }
  std::vector<Distances> all;
  for (int64_t k = 0; k < a.dim(); ++k) {
    if (a.stride(k) == 0) continue;
    all.push_back({a.stride(k), 1 - b.size(k), a.size(k) - 1});
  }
  std::ranges::sort(all, std::greater(), &Distances::stride);
  return is_sum(b.storage_offset() - a.storage_offset(), all, 0);
}

bool in_common(const Activation& a, const Activation& b) {
  return has_memory(a) && has_memory(b) && a.tensor.is_alias_of(b.tensor) &&
         may_overlap(a.tensor, b.tensor);
}

// Returns a result of a loss function, without its graph. If the function may
// have kept the memory, in which it could write the result for the next
// micro-batch, returns a copy.
at::Tensor values_of(at::Tensor result) {
  const bool is_kept =
      result.use_count() > 1 ||
      (result.has_storage() && result.storage().use_count() > 1);
  result = result.detach();
  return is_kept ? result.clone() : result;
}

}  // namespace

void mark_shared(std::vector<Activation>& crossings) {
  for (std::size_t k = 1; k < crossings.size(); ++k) {
    for (std::size_t n = 0; n < k; ++n) {
      if (!in_common(crossings[n], crossings[k])) continue;
      crossings[n].shared = crossings[k].shared = true;
    }
  }
}

bool is_same_view(const at::Tensor& a, const at::Tensor& b) {
  return has_memory(a) && has_memory(b) && a.is_alias_of(b) &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

SharedInput::SharedInput(const std::vector<Activation>& input) {
  for (const Activation& each : input) {
    if (!has_memory(each)) continue;
    if (each.shared && !each.tensor.is_inference()) {
      tensors_.push_back({WatchedVersion(each.tensor),
                          each.tensor.storage().getWeakStorageImpl(),
                          each.unsplit >= 0});
    }
    if (each.unsplit >= 0) unsplit_.push_back(each);
  }
}

void SharedInput::check_unchanged(int64_t partition) const {
  for (const Tensor& each : tensors_) {
    TORCH_CHECK(
        !each.version.is_changed(), "a layer of partition ", partition,
        " changes a tensor in place that ",
        each.is_unsplit
            ? "all micro-batches share, such as an element of unsplit(), so "
              "that the others"
            : "an earlier partition has given to more than one layer (returned "
              "twice, or stashed and returned), so that the other layers",
        " would get another value or gradient than in the plain model; let "
        "that layer work out of place (such as ReLU without inplace), or pass "
        "a clone()");
  }
}

void SharedInput::mark(std::vector<Activation>& outputs) const {
  for (const Tensor& each : tensors_) {
    const auto memory = each.memory.lock();
    for (Activation& output : outputs) {
      if (memory && has_memory(output) &&
          output.tensor.storage().unsafeGetStorageImpl() == memory.get()) {
        output.shared = true;
      }
    }
  }
  for (const Activation& input : unsplit_) {
    for (Activation& output : outputs) {
      if (is_same_view(output.tensor, input.tensor)) {
        output.unsplit = input.unsplit;
      }
    }
  }
}

CellTracker::CellTracker(const Partition& partition,
                         std::vector<std::optional<at::Tensor>> imported)
    : partition_(partition) {
  for (std::size_t k = 0; k < imported.size(); ++k) {
    held_.emplace(partition.imports[k].key, std::move(imported[k]));
  }
}

void CellTracker::save(const SkipKey& key, std::optional<at::Tensor> tensor) {
  fault_point("stash", partition_.index, microbatch_at_work());
  held_[key] = std::move(tensor);
  stashed_.insert(key);
}

std::optional<at::Tensor> CellTracker::load(const SkipKey& key) {
  fault_point("pop", partition_.index, microbatch_at_work());
  auto found = held_.find(key);
  if (found == held_.end()) throw_not_stashed(key);
  std::optional<at::Tensor> tensor = std::move(found->second);
  held_.erase(found);
  popped_.insert(key);
  return tensor;
}

const at::Tensor* CellTracker::find(const SkipKey& key) const {
  const auto found = held_.find(key);
  return found != held_.end() && found->second ? &*found->second : nullptr;
}

void CellTracker::check_done(const LayerSkips& declared) {
  for (const SkipKey& key : declared.stash) {
    TORCH_CHECK(stashed_.count(key), "'", key.name,
                "' must be stashed but have not");
  }
  for (const SkipKey& key : declared.pop) {
    TORCH_CHECK(popped_.count(key), "'", key.name,
                "' must be popped but have not");
  }
  stashed_.clear();
  popped_.clear();
}

std::vector<std::optional<at::Tensor>> CellTracker::take_exported() {
  std::vector<std::optional<at::Tensor>> exported;
  for (const SkipRoute& route : partition_.exports) {
    auto found = held_.find(route.key);
    exported.push_back(std::move(found->second));
    held_.erase(found);
  }
  return exported;
}

namespace {

// Returns "undefined", or the type and the sizes of `tensor`.
std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return c10::str(tensor.toString(), " of sizes ", tensor.sizes());
}

// Returns the first `width` of `all` as boundary tensors, the others as skips.
Activations divided(Value::Kind kind, std::vector<Activation> all,
                    std::size_t width) {
  const auto skips = std::make_move_iterator(all.begin() + width);
  return {kind,
          {std::make_move_iterator(all.begin()), skips},
          {skips, std::make_move_iterator(all.end())}};
}

// Throws c10::ValueError if `loss` cannot be used.
void check_loss(const WeightedLoss& loss, bool weighted) {
  const bool usable = loss.sum.defined() && loss.sum.numel() == 1 &&
                      loss.sum.is_floating_point();
  TORCH_CHECK_VALUE(
      usable || weighted,
      "the loss of a micro-batch must be a floating-point tensor with one "
      "element, but it is ",
      describe(loss.sum),
      "; reduce it, with a mean over the rows of the micro-batch");
  if (!weighted) return;
  TORCH_CHECK_VALUE(
      usable,
      "WeightedLoss::sum must be a floating-point tensor with one element, but "
      "it is ",
      describe(loss.sum), "; reduce it, with a sum over the micro-batch");
  TORCH_CHECK_VALUE(
      loss.weight.defined() && loss.weight.numel() == 1 &&
          !loss.weight.is_complex(),
      "WeightedLoss::weight must be a real tensor with one element, but it is ",
      describe(loss.weight),
      "; set it to the number of tokens or rows in WeightedLoss::sum");
  for (const auto& [name, value] : loss.metrics) {
    TORCH_CHECK_VALUE(
        value.defined() && value.numel() == 1 && !value.is_complex(),
        "the metric '", name,
        "' must be a real tensor with one element, but it is ", describe(value),
        "; reduce it, with a sum over the micro-batch");
  }
}

}  // namespace

Activations Cell::forward(Activations input, StepSeed& seed, bool leaf_input) {
  leaf_input_ = leaf_input;
  input_kind_ = input.kind;
  input_width_ = input.boundary.size();
  std::vector<Activation> inputs = std::move(input.boundary);
  for (Activation& skip : input.skips) inputs.push_back(std::move(skip));

  if (checkpointed_) begin_checkpoint(inputs);

  const std::vector<WatchedVersion> shared_buffers(
      partition_->shared_buffers.begin(), partition_->shared_buffers.end());
  const SharedInput shared(inputs);
  const std::vector<at::Tensor> outputs =
      run_layers(std::move(inputs), seed, /*again=*/false);
  // A layer may register a buffer when it is called first.
  if (std::exchange(partition_->unused, false)) {
    partition_->modules.find_again();
  }
  shared.check_unchanged(partition_->index);
  for (std::size_t k = 0; k < shared_buffers.size(); ++k) {
    // BatchNorm changes its statistics without a new version.
    const bool is_changed =
        shared_buffers[k].is_changed() ||
        contains(past_.record().statistics, partition_->shared_buffers[k]);
    TORCH_CHECK(!is_changed, "buffer '",
                partition_->modules.name_of(partition_->shared_buffers[k]),
                "' of partition ", partition_->index,
                " has been changed in a forward, but a layer of another "
                "partition has it, too, and two workers would change and read "
                "it in no order; choose a balance that puts these layers into "
                "one partition, or give each a module of its own");
  }
  note_leaving(outputs);

  std::vector<Activation> leaving;
  leaving.reserve(outputs.size());
  for (const at::Tensor& each : outputs) {
    Activation& output = leaving.emplace_back(without_graph(each));
    output.leaf = each.defined() && each.requires_grad() && each.is_leaf();
    if (is_changed_later(each)) {
      output.tensor = output.tensor.clone();
    }
  }
  mark_shared(leaving);
  shared.mark(leaving);
  Activations output = divided(output_kind_, std::move(leaving), output_width_);
  if (!c10::GradMode::is_enabled()) return output;

  check_no_other_input();
  if (checkpointed_) {
    past_.first_call_done(outputs, /*with_grad=*/true);
    // Only from here on, since layers may change their parameters in no_grad.
    for (const at::Tensor& each : leaves()) past_.watch_parameter(each);
    graph_.drop_graph();
  }
  return output;
}

bool Cell::is_changed_later(const at::Tensor& output) const {
  return partition_->modules.has_memory_of_buffer(output) ||
         past_.has_memory_of_counter(output);
}

void Cell::begin_checkpoint(const std::vector<Activation>& inputs) {
  past_input_ = inputs;
  past_ = PastCall("partition " + std::to_string(partition_->index),
                   ", or use Checkpoint::kNever", &partition_->modules);
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    std::string name = "input " + std::to_string(k);
    if (k >= input_width_) {
      const SkipRoute& route = partition_->imports[k - input_width_];
      name = "skip tensor '" + route.key.name + "'";
    }
    past_.watch_input(std::move(name), inputs[k].tensor);
  }
  for (const at::Tensor& each : partition_->modules.parameters()) {
    if (!each.requires_grad()) past_.watch_parameter(each);
  }
}

void Cell::recompute(StepSeed& seed) {
  past_.check_unchanged();
  // The layers must see the buffer values of the forward, even if other code
  // has changed the buffers since. The layers change them again.
  const std::vector<BufferValue> past = past_.changed_buffers();
  for (const BufferValue& each : past) {
    TORCH_CHECK(!each.is_changed() ||
                    !contains(partition_->shared_buffers, each.buffer),
                "buffer '", partition_->modules.name_of(each.buffer),
                "' of partition ", partition_->index,
                " has been changed between forward and backward, but a layer "
                "of another partition has it, too, and two workers would "
                "restore it in no order; call the backward first, or choose a "
                "balance that puts these layers into one partition");
  }
  // Hooks need gpipe's autograd engine. Without it, the statistics of norms are
  // restored, too. Operators read them in the backward only if a layer does
  // more with them than to pass them to a norm.
  kept_.reset();
  if (!std::ranges::all_of(past, &BufferValue::is_norm) ||
      (!past.empty() && SavedTensorScope::is_available())) {
    kept_ = std::make_unique<KeptTensors>(partition_->device);
  }
  {
    PastBuffers buffers(past);
    const GradsOfNow grads;
    past_.check_outputs(run_layers(past_input_, seed, /*again=*/true));
    buffers.restore();
  }
  check_no_other_input();
  graph_.take_foreign();  // known from the forward
}

std::vector<at::Tensor> Cell::run_layers(std::vector<Activation> input,
                                         StepSeed& seed, bool again) {
  // A layer or the loss may leave another mode behind.
  const bool with_grad = c10::GradMode::is_enabled();
  const c10::AutoGradMode restores_mode(with_grad);
  // Skip tensors may be weights, of which layers make graphs in any partition.
  for (std::size_t k = input_width_; k < input.size(); ++k) {
    input[k].leaf = input[k].leaf && !with_grad;
  }
  std::vector<at::Tensor> boundary = graph_inputs(input, leaf_input_);
  std::vector<Edge> input_edges = gradient_edges(boundary), inner;
  std::vector<std::optional<at::Tensor>> imported;
  for (std::size_t k = input_width_; k < input.size(); ++k) {
    at::Tensor& skip = boundary[k];
    imported.push_back(skip.defined() ? std::make_optional(std::move(skip))
                                      : std::nullopt);
  }
  boundary.resize(input_width_);
  layer_starts_.clear();
  const bool seek_inner =
      with_grad && std::ranges::none_of(input_edges, &Edge::is_valid);
  // From here on only the layers hold their input, so it is freed as early as
  // in the plain model.
  input.clear();

  // In a layer that an outer pipeline recomputes, a buffer may have its value
  // of an earlier time (see PastBuffers).
  const PhaseInfo* const phase = current_phase();
  const bool in_recompute =
      !again && phase && phase->recomputing && SavedTensorScope::is_available();
  if ((offloads_ || in_recompute) && with_grad && (again || !checkpointed_)) {
    kept_ = std::make_unique<KeptTensors>(partition_->device);
  }
  std::optional<SavedTensorScope> saved_tensors;
  if (kept_) saved_tensors.emplace(kept_.get());
  CellTracker tracker(*partition_, std::move(imported));
  UseSkipTracker use_tracker(tracker);
  RandomScope random(seed, random_stream_,
                     checkpointed_ ? &past_.record() : nullptr, again);
  NormScope norms(partition_->norms.get(), past_.record(), again);
  CastScope casts(partition_->casts, partition_->device);
  Value value(input_kind_, std::move(boundary));
  if (check_finite_ && partition_->index == 0) {
    gpipe::internal::check_finite(value.tensors(), "the pipeline's input");
  }
  for (Layer& layer : partition_->layers) {
    layer_at_work_ = layer.name;
    random.enter_layer(layer.index);
    layer_starts_.push_back(at::sequence_number::peek());
    value = call_layer(layer.module, std::move(value));
    if (check_finite_) check_output(layer, value, tracker);
    tracker.check_done(layer.skips);
    // The outputs of the first layer that has a graph divide the cell's graph.
    if (seek_inner && inner.empty()) {
      inner = gradient_edges(value.tensors());
      std::erase_if(inner, std::not_fn(&Edge::is_valid));
    }
  }
  if (head_) {
    layer_at_work_ = "loss";
    random.enter_layer(partition_->layers.back().index + 1);
    layer_starts_.push_back(at::sequence_number::peek());
    value = run_head(std::move(value));
  }
  layer_at_work_.clear();
  partition_->modules.add_norm_buffers(past_.record().statistics);
  std::vector<at::Tensor> outputs = take_outputs(std::move(value), tracker);
  if (with_grad) {
    Subgraph graph(layer_starts_.front(), std::move(input_edges), outputs,
                   outputs.size() - output_width_, std::move(inner));
    if (again) graph.number_as(graph_);
    graph_ = std::move(graph);
  }
  return outputs;
}

std::vector<at::Tensor> Cell::take_outputs(Value value, CellTracker& tracker) {
  output_kind_ = value.kind();
  std::vector<at::Tensor> outputs = std::move(value.tensors());
  TORCH_CHECK_TYPE(
      output_kind_ != Value::Kind::kTensor || outputs.front().defined(),
      "layer '", partition_->layers.back().name,
      "' returned an undefined tensor; only elements of a vector "
      "or a tuple may be undefined");
  output_width_ = outputs.size();
  for (auto& skip : tracker.take_exported()) {
    outputs.push_back(skip ? std::move(*skip) : at::Tensor());
  }
  return outputs;
}

void Cell::note_leaving(const std::vector<at::Tensor>& outputs) {
  leaving_.clear();
  if (!kept_ || !offloads_) return;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const std::size_t number = k < output_width_ ? 0 : k - output_width_ + 1;
    if (!output_leaves_[number] || !outputs[k].defined() ||
        !outputs[k].has_storage()) {
      continue;
    }
    leaving_.insert(outputs[k].storage().unsafeGetStorageImpl());
  }
}

void Cell::offload(Copier& copier, Copier::Times* times) {
  if (!kept_) return;
  // Casts of parameters stay on the device, as parameters do: a copy back of
  // each cell would be one that it does not share.
  const std::vector<c10::Storage> casts = partition_->casts.hold();
  kept_->offload(copier, std::exchange(leaving_, {}), times);
}

void Cell::reload(Copier& copier, Copier::Times* times) {
  if (kept_) kept_->reload(copier, times);
}

void Cell::check_output(const Layer& layer, const Value& output,
                        const CellTracker& tracker) const {
  const std::string name =
      "layer '" + layer.name + "' (" + layer.module.ptr()->name() + ")";
  // Skip tensors are checked before the output, because other layers may use a
  // skip tensor first.
  for (const SkipKey& key : layer.skips.stash) {
    const at::Tensor* const skip = tracker.find(key);
    if (!skip) continue;
    gpipe::internal::check_finite(
        *skip, "the skip tensor '" + key.name + "' of " + name);
  }
  gpipe::internal::check_finite(output.tensors(), "the output of " + name);
}

Value Cell::run_head(Value output) {
  fault_point("loss", partition_->index, microbatch_at_work());
  if (head_->keep_output && head_->output.tensors().empty()) {
    head_->output = output;
    for (at::Tensor& each : head_->output.tensors()) {
      if (!each.defined()) continue;
      each = is_changed_later(each) ? each.detach().clone() : each.detach();
    }
  }
  std::vector<WatchedVersion> targets(head_->target.tensors().begin(),
                                      head_->target.tensors().end());
  WeightedLoss loss = (*head_->function)(std::move(output), head_->target);
  // Checked here and not when the recompute begins: a cell without
  // checkpointing may change its own target, and the targets of all cells share
  // one version counter.
  TORCH_CHECK(
      !checkpointed_ || std::ranges::none_of(
                            targets, std::mem_fn(&WatchedVersion::is_changed)),
      "the loss function changes its target in place, so that the "
      "checkpointed forward cannot be computed again from it; let it "
      "work on target.clone()");
  check_loss(loss, head_->function->weighted());
  // The mean over a part without rows is NaN, and counts nothing.
  const bool counts = loss.weight.defined() ||
                      !has_row_dimension(head_->target) ||
                      rows_of(head_->target) > 0;
  if (!head_->weight.defined() && loss.weight.defined()) {
    head_->weight = values_of(std::move(loss.weight));
    head_->metrics = std::move(loss.metrics);
    for (auto& [name, value] : head_->metrics) {
      value = values_of(std::move(value));
    }
  }
  if (check_finite_ && counts) {
    gpipe::internal::check_finite(loss.sum, "the loss");
  }
  if (!loss.sum.requires_grad()) loss.sum = values_of(std::move(loss.sum));
  return Value::wrap(std::move(loss.sum));
}

void Cell::check_no_other_input() {
  if (!graph_.reaches_other_input()) return;
  const auto* const node = graph_.user_of_other_input();
  std::string of_layer = "a layer";
  if (node) {
    layer_at_work_ = layer_of(node->sequence_nr());
    of_layer = "layer '" + layer_at_work_ + "'";
  }
  TORCH_CHECK(false, of_layer, " of partition ", partition_->index,
              " uses a tensor that depends on the input of another "
              "micro-batch (or of another pipeline), whose gradient would be "
              "lost; a layer must not keep tensors with a graph from one "
              "forward to the next. Let it keep tensor.detach(), or use one "
              "micro-batch");
}

std::string Cell::layer_of(uint64_t node) const {
  const auto next = std::ranges::upper_bound(layer_starts_, node);
  const auto k = next - layer_starts_.begin() - 1;
  if (k < 0) return "";
  // The loss function comes after the last layer.
  const auto layers = static_cast<int64_t>(partition_->layers.size());
  return k < layers ? partition_->layers[k].name : "loss";
}

std::vector<Cell::Captured> Cell::take_captured() {
  std::vector<Captured> captured;
  for (Subgraph::Foreign& each : graph_.take_foreign()) {
    captured.push_back(
        {std::move(each.node), each.user ? layer_of(*each.user) : ""});
  }
  return captured;
}

std::vector<at::Tensor> Cell::gradients_in(Activations grads) const {
  std::vector<at::Tensor> all;
  for (std::size_t k = 0; k < output_width_; ++k) {
    all.push_back(std::move(grads.boundary[k].tensor));
  }
  for (Activation& skip : grads.skips) all.push_back(std::move(skip.tensor));
  return all;
}

Activations Cell::gradients_of(std::vector<at::Tensor> input_grads) const {
  std::vector<Activation> grads;
  for (at::Tensor& each : input_grads) grads.push_back({std::move(each)});
  return divided(Value::Kind::kVector, std::move(grads), input_width_);
}

Activations Cell::backward(Activations grads, bool keep_graph, bool want_input,
                           const std::vector<bool>& leaf_wanted,
                           const LeafSink& sink) {
  if (kept_) kept_->before_backward();
  std::vector<bool> wanted(leaves().size(), true);
  for (std::size_t k = 0; k < wanted.size() && !leaf_wanted.empty(); ++k) {
    wanted[k] = leaf_wanted[leaf_numbers_[k]];
  }
  // The graph of a recompute serves one backward, even if the step's graph is
  // kept.
  return gradients_of(graph_.backward(gradients_in(std::move(grads)),
                                      keep_graph && !checkpointed_, want_input,
                                      wanted, sink));
}

Activations Cell::backward_input(Activations grads) {
  if (kept_) kept_->before_backward();
  return gradients_of(graph_.backward_input(gradients_in(std::move(grads))));
}

void Cell::release() {
  past_ = PastCall();
  past_input_.clear();
  graph_ = Subgraph();
  kept_.reset();
}

}  // namespace gpipe::internal
