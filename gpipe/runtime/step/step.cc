#include "gpipe/runtime/step/step.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "gpipe/libtorch/dispatcher.h"
#include "gpipe/runtime/autograd/gradients.h"
#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/device/test_hooks.h"
#include "gpipe/runtime/step/autograd_node.h"

namespace gpipe::internal {

Stages::Stages(std::vector<Partition> partitions_in,
               std::vector<int> rank_of_stage_in, Unsplit unsplit_in)
    : partitions(std::move(partitions_in)),
      rank_of_stage(std::move(rank_of_stage_in)),
      unsplit(std::move(unsplit_in)),
      time_first(time_first_layer(partitions)) {
  check_claimed(kCellKey);
  for (const c10::Device& device : devices()) {
    copiers.emplace_back(device);
  }
  for (const Partition& from : partitions) {
    links.insert(links.end(), from.exports.begin(), from.exports.end());
  }
}

void Stages::warn_of_split_time(const MiniBatch& batch) const {
  if (time_first.empty() || batch.split() || batch.microbatches() == 1) return;
  TORCH_WARN_ONCE(
      "layer '", time_first,
      "' takes time along dimension 0 of its input and rows along dimension 1, "
      "but a pipeline splits dimension 0: each of the ",
      batch.microbatches(),
      " micro-batches has a part of the time, so the results are not those of "
      "the plain model. Give RNN, GRU and LSTM batch_first(true), transpose "
      "before and after other layers in a module of your own, or use one "
      "micro-batch");
}

std::vector<bool> Stages::leaves_device(int64_t stage) const {
  const Partition& from = partitions[stage];
  const auto goes_away = [&](int64_t to) {
    const Partition& next = partitions[to];
    return next.remote || next.device != from.device;
  };
  // The last stage returns its outputs to the caller.
  std::vector<bool> leaves = {stage + 1 < size() && goes_away(stage + 1)};
  for (const SkipRoute& skip : from.exports) {
    leaves.push_back(goes_away(skip.to));
  }
  return leaves;
}

std::string Stages::describe_leaf(int64_t stage, const at::Tensor& leaf) const {
  const std::string name = partitions[stage].modules.name_of(leaf);
  return name.empty() ? "a tensor that a layer has captured"
                      : "parameter '" + name + "'";
}

std::string Stages::describe_leaf(const at::Tensor& leaf) const {
  int64_t stage = 0;
  while (stage + 1 < size() &&
         partitions[stage].modules.name_of(leaf).empty()) {
    ++stage;
  }
  return describe_leaf(stage, leaf);
}

std::vector<c10::Device> Stages::devices() const {
  const int ranks = 1 + *std::ranges::max_element(rank_of_stage);
  std::vector<c10::Device> devices(ranks, c10::Device(c10::kCPU));
  for (std::size_t stage = 0; stage < partitions.size(); ++stage) {
    if (partitions[stage].remote) continue;
    devices[rank_of_stage[stage]] = partitions[stage].device;
  }
  return devices;
}

Step::Step(Stages& stages, int64_t microbatches,
           const std::function<bool(int64_t, int64_t)>& checkpointed,
           int64_t before)
    : rank_of_stage(stages.rank_of_stage),
      cells(stages.partitions.size()),
      leaves(stages.partitions.size()),
      stages_(stages),
      microbatches_(microbatches),
      threads_(stages.partitions.size()) {
  list_again(stages.partitions);
  for (std::size_t j = 0; j < cells.size(); ++j) {
    if (stages.partitions[j].remote) continue;
    stages.partitions[j].unused = true;
    stages.partitions[j].casts.begin(stages.partitions[j].modules.parameters());
    for (int64_t i = 0; i < microbatches; ++i) {
      cells[j].emplace_back(stages.partitions[j], before + i,
                            checkpointed(static_cast<int64_t>(j), i));
    }
  }
}

void Step::number_leaves(int64_t j, int64_t i) {
  Cell& cell = cells[j][i];
  threads_[j].store(at::RecordFunction::currentThreadId(),
                    std::memory_order_relaxed);
  claim(j, cell.take_captured());
  auto& [list, numbers] = leaves[j];
  for (const at::Tensor& leaf : cell.leaves()) {
    const auto [entry, is_new] = numbers.emplace(
        leaf.unsafeGetTensorImpl(), static_cast<int64_t>(list.size()));
    if (is_new) list.push_back(leaf);
    cell.leaf_numbers().push_back(entry->second);
  }
}

// A running backward changes edges of its graph. Another worker would follow
// the changed edges: in its own backward, or, with one micro-batch (whose
// backwards wait for each other), in an early recompute or a weight part.
void Step::claim(int64_t j, std::vector<Cell::Captured> nodes) {
  if (nodes.empty()) return;
  for (const auto& each : nodes) check_maker(j, each);
  std::lock_guard<std::mutex> lock(claims_mutex_);
  for (auto& each : nodes) {
    const auto [claim, is_new] =
        claims_.emplace(std::move(each.node), Claim{j, std::move(each.layer)});
    const int64_t other = claim->second.partition;
    TORCH_CHECK(is_new || other == j, "layers of partitions ",
                std::min(other, j), " and ", std::max(other, j),
                " use a tensor that has been computed outside of the pipeline "
                "(by ",
                claim->first->name(),
                "), whose graph two workers cannot go through at the same "
                "time; compute it in each of these layers, or choose a balance "
                "that puts them into one partition");
  }
}

// Such a tensor did not come through the pipeline. Its value may be that of
// another micro-batch, and its gradient would not reach the cell that made it.
void Step::check_maker(int64_t j, const Cell::Captured& captured) const {
  const uint64_t maker = captured.node->thread_id();
  for (std::size_t k = 0; k < threads_.size(); ++k) {
    const bool made_it = threads_[k].load(std::memory_order_relaxed) == maker;
    TORCH_CHECK(
        !made_it,
        captured.layer.empty() ? c10::str("partition ", j)
                               : c10::str("layer '", captured.layer, "'"),
        " uses a tensor that a layer of partition ", k, " has computed (by ",
        captured.node->name(),
        "), but that did not come through the pipeline, such as a member that "
        "one layer writes and another reads. Partitions work on different "
        "micro-batches at the same time. Pass the tensor on as an element of "
        "a tuple, or as a skip tensor (gpipe/skip.h)");
  }
}

std::string Step::describe_captured(int64_t j) {
  std::lock_guard<std::mutex> lock(claims_mutex_);
  const std::pair<const NodePtr, Claim>* found = nullptr;
  for (const auto& each : claims_) {
    if (each.second.partition != j) continue;
    // Only the first node of a captured graph has a layer.
    if (!found || found->second.layer.empty()) found = &each;
  }
  if (!found) return "";
  return c10::str(found->second.layer.empty()
                      ? c10::str("a layer of partition ", j)
                      : c10::str("layer '", found->second.layer, "'"),
                  " uses a tensor that has been computed outside of the "
                  "pipeline (by ",
                  found->first->name(), ")");
}

bool Step::is_shared(int64_t j, const at::Tensor& leaf) const {
  for (std::size_t k = 0; k < leaves.size(); ++k) {
    if (static_cast<int64_t>(k) == j) continue;
    if (leaves[k].numbers.count(leaf.unsafeGetTensorImpl()) > 0) return true;
  }
  return false;
}

std::vector<SharedLeaf> Step::shared_leaves() const {
  std::vector<SharedLeaf> result;
  std::unordered_map<at::TensorImpl*, std::size_t> indices;
  for (std::size_t j = 0; j < leaves.size(); ++j) {
    const auto& list = leaves[j].list;
    for (std::size_t k = 0; k < list.size(); ++k) {
      const auto [entry, is_new] =
          indices.emplace(list[k].unsafeGetTensorImpl(), result.size());
      if (is_new) result.push_back({list[k], {}});
      result[entry->second].places.emplace_back(static_cast<int64_t>(j),
                                                static_cast<int64_t>(k));
    }
  }
  return result;
}

Failure Step::failure_at(const Action& action, Phase phase) const {
  return {action.stage, action.microbatch, phase,
          cells[action.stage][action.microbatch].layer_at_work(), ""};
}

Element::Element(std::size_t index, const std::vector<Value>& pieces)
    : form_(Form::kRows), index_(index) {
  for (const Value& piece : pieces) {
    const at::Tensor& tensor = piece.tensors()[index];
    const bool has_rows = tensor.defined() && tensor.dim() > 0;
    rows_.push_back(has_rows ? tensor.size(0) : 0);
    if (!tensor.defined()) continue;
    sizes_ = tensor.sizes().vec();
    options_ = tensor.options();
  }
}

Element Element::whole(std::size_t index, const at::Tensor& tensor) {
  Element element(Form::kWhole, index);
  if (tensor.is_leaf()) element.grad_type_ = tensor.grad_dtype();
  return element;
}

at::Tensor Element::join(
    const std::vector<std::vector<at::Tensor>>& grads) const {
  const auto piece_of = [&](std::size_t i) {
    at::Tensor piece = grads[i].empty() ? at::Tensor() : grads[i][index_];
    if (piece.defined()) record_stream(piece, piece.device());
    return piece;
  };
  if (form_ == Form::kPart) return piece_of(microbatch_);
  if (form_ == Form::kWhole) {
    GradSum sum;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      at::Tensor piece = piece_of(i);
      if (piece.defined() && grad_type_) piece = piece.to(*grad_type_);
      sum.add(0, std::move(piece));
    }
    return sum.take(0);
  }
  std::vector<at::Tensor> pieces;
  std::optional<c10::Device> device;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    pieces.push_back(piece_of(i));
    if (pieces.back().defined()) device = pieces.back().device();
  }
  if (!device) return {};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].defined()) continue;
    auto sizes = sizes_;
    sizes[0] = rows_[i];
    pieces[i] = at::zeros(sizes, options_.device(*device));
  }
  if (pieces.size() == 1) return pieces[0];
  return at::cat(pieces, 0);
}

void Element::split(at::Tensor grad,
                    std::vector<std::vector<at::Tensor>>& grads) const {
  if (form_ == Form::kPart) {
    grads[microbatch_][index_] = std::move(grad);
    return;
  }
  if (rows_.size() == 1) {
    grads[0][index_] = std::move(grad);
    return;
  }
  int64_t row = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    grads[i][index_] = grad.narrow(0, row, rows_[i]);
    row += rows_[i];
  }
}

MiniBatch::MiniBatch(Batch input, std::vector<int64_t> rows, Unsplit unsplit,
                     bool with_graph)
    : input_(std::move(input)),
      unsplit_(std::move(unsplit)),
      rows_(std::move(rows)),
      with_graph_(with_graph) {
  std::vector<Value> detached = input_.values();
  for (Value& value : detached) {
    for (at::Tensor& tensor : value.tensors()) {
      versions_.emplace_back(tensor);
      if (!tensor.defined()) continue;
      check_no_tangent(tensor, "the input");
      leaf_ = leaf_ && tensor.is_leaf();
      tensor = tensor.detach();
    }
  }
  fault_point("scatter", 0);
  if (!input_.split()) {
    pieces_ = scatter(detached.front(), rows_, unsplit_);
    return;
  }
  unsplit_.clear();
  rows_.clear();
  for (const Value& part : detached) rows_.push_back(rows_of(part));
  pieces_ = std::move(detached);
}

std::vector<Activations> MiniBatch::activations() const {
  std::vector<Activations> all;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Value& whole = input_.values()[input_.split() ? i : 0];
    Activations& activations = all.emplace_back();
    activations.kind = pieces_[i].kind();
    for (std::size_t k = 0; k < whole.tensors().size(); ++k) {
      const at::Tensor& tensor = whole.tensors()[k];
      Activation& each = activations.boundary.emplace_back();
      each.tensor = pieces_[i].tensors()[k];
      each.requires_grad =
          with_graph_ && tensor.defined() && tensor.requires_grad();
      if (is_unsplit(unsplit_, k)) {
        each.unsplit = 2 * static_cast<int>(k);
        each.shared = pieces_.size() > 1;
      }
    }
    mark_shared(activations.boundary);
  }
  return all;
}

std::vector<MiniBatch::Wanted> MiniBatch::wanted() const {
  std::vector<Wanted> result;
  for (std::size_t i = 0; with_graph_ && i < input_.values().size(); ++i) {
    const auto& tensors = input_.values()[i].tensors();
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      if (!tensors[k].defined() || !tensors[k].requires_grad()) continue;
      if (input_.split()) {
        result.push_back(
            {tensors[k], Element::of_part(static_cast<int64_t>(i), k)});
      } else if (is_unsplit(unsplit_, k)) {
        result.push_back({tensors[k], Element::whole(k, tensors[k])});
      } else {
        result.push_back({tensors[k], Element(k, pieces_)});
      }
    }
  }
  return result;
}

void MiniBatch::refuse_changed() const {
  auto version = versions_.begin();
  for (const Value& value : input_.values()) {
    for (const at::Tensor& tensor : value.tensors()) {
      // LibTorch refuses changes of leaves, but for those without grad mode,
      // which a graph need not have.
      if (!(version++)->is_changed() || tensor.is_leaf()) continue;
      refuse_backward(
          tensor,
          "a layer has changed the input of its pipeline in place, and the "
          "graph of that tensor does not have the change, so that a gradient "
          "through it would be wrong; give the pipeline a clone() of it");
    }
  }
}

Value value_of(Activations output, const c10::Device& device) {
  std::vector<at::Tensor> tensors;
  for (Activation& each : output.boundary) {
    record_stream(each.tensor, device);
    tensors.push_back(std::move(each.tensor));
  }
  return Value(output.kind, std::move(tensors));
}

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

// Discards statistics of an earlier mini-batch that failed and could not be
// discarded at that time.
MiniBatchNorms::MiniBatchNorms(const std::vector<Partition>& partitions)
    : partitions_(partitions) {
  discard();
  for (const Partition& each : partitions_) {
    if (each.norms) each.norms->find_layers();
  }
}

MiniBatchNorms::~MiniBatchNorms() {
  if (kept_) return;
  try {
    if (!written_) {
      discard();
    } else if (std::ranges::none_of(versions_,
                                    std::mem_fn(&WatchedVersion::is_changed))) {
      NormStatistics::undo(updates_);
    }
  } catch (...) {
    // The device has failed, or memory has run out. The next mini-batch tries
    // again.
  }
}

void MiniBatchNorms::prepare() {
  for (const Partition& each : partitions_) {
    if (!each.norms) continue;
    for (auto& update : each.norms->updates()) {
      updates_.push_back(std::move(update));
    }
  }
}

void MiniBatchNorms::write() {
  written_ = true;
  for (const Partition& each : partitions_) {
    if (each.norms) each.norms->forget();
  }
  NormStatistics::make(updates_);
  for (const NormStatistics::Update& each : updates_) {
    for (const at::Tensor& buffer : each.buffers) {
      versions_.emplace_back(buffer);
    }
  }
}

void MiniBatchNorms::keep() noexcept { kept_ = true; }

void MiniBatchNorms::discard() {
  for (const Partition& each : partitions_) {
    if (each.norms) each.norms->discard();
  }
}

}  // namespace gpipe::internal
