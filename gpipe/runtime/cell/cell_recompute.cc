// The part of Cell that computes a checkpointed forward again.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "gpipe/libtorch/saved_tensors.h"
#include "gpipe/runtime/cell/cell.h"
#include "gpipe/runtime/recompute/buffer_copies.h"

namespace gpipe::internal {

void Cell::check_unchanged() const {
  TORCH_CHECK(versions_of(saved_.input) == saved_.versions,
              "the input of partition ", partition_->index,
              " has been changed in place between forward and backward; a "
              "checkpointed forward cannot be computed again from it. Change a "
              "copy instead, or use Checkpoint::kNever");
  TORCH_CHECK(training_of(*partition_) == saved_.training,
              "train() or eval() was called between forward and backward; a "
              "checkpointed forward cannot be computed again in another mode");
  for (std::size_t k = 0; k < leaves_.tensors.size(); ++k) {
    check_unchanged(leaves_.tensors[k], saved_.leaf_versions[k]);
  }
  for (const auto& [parameter, version] : saved_.frozen) {
    check_unchanged(parameter, version);
  }
}

void Cell::check_unchanged(const at::Tensor& parameter, int64_t version) const {
  TORCH_CHECK(version_of(parameter) == version, "parameter '",
              partition_->name_of(parameter),
              "' has been changed in place between forward and backward; a "
              "checkpointed forward cannot be computed again with it. Call "
              "backward first, or forward again; a tensor that a layer changes "
              "itself must be a buffer");
}

// The layers must see the buffer values of the forward, even if other code has
// changed the buffers since. The layers change them again.
BufferCopies Cell::begin_recompute() {
  BufferCopies past = saved_.norms;
  bool changed = false;
  for (const BufferValue& then : saved_.buffers) {
    // Some have become norm_buffers in this cell's forward.
    const bool is_norm = std::any_of(
        partition_->norm_buffers.begin(), partition_->norm_buffers.end(),
        [&](const at::Tensor& each) { return each.is_same(then.buffer); });
    if (!is_norm && version_of(then.buffer) == then.version) continue;
    past.add(then.buffer, then.value);
    changed = changed || !is_norm;
  }
  // Hooks need gpipe's autograd engine. Without it, the statistics of norms are
  // restored, too. Operators read them in the backward only if a layer does
  // more with them than to pass them to a norm.
  const bool norms = !partition_->norm_buffers.empty();
  kept_.reset();
  if (changed || (norms && SavedTensorScope::is_available())) {
    kept_ = std::make_unique<KeptTensors>(partition_->device);
  }
  return past;
}

void Cell::recompute(StepSeed& seed) {
  check_unchanged();
  std::vector<Outline> outlines;
  {
    PastBuffers buffers(begin_recompute());
    outlines = outlines_of(run_layers(saved_.input, seed, /*again=*/true));
    buffers.restore();
  }
  TORCH_CHECK(outlines == saved_.outputs, "the layers of partition ",
              partition_->index,
              " did not return the same in the recompute as in the "
              "checkpointed forward (number, sizes, dtype or requires_grad "
              "of the outputs differ); a layer must do the same in both");
  relink_leaf_edges();
}

// Leaves keep their order of the first forward, because leaf_numbers_ refers to
// it.
void Cell::relink_leaf_edges() {
  Leaves now = find_leaves(output_edges_, input_edges_);
  check_no_other_input(now);
  const bool as_before = std::equal(
      now.tensors.begin(), now.tensors.end(), leaves_.tensors.begin(),
      leaves_.tensors.end(),
      [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
  if (as_before) {
    leaves_.leaf_edges = std::move(now.leaf_edges);
    return;
  }
  std::unordered_map<const at::TensorImpl*, std::size_t> places;
  for (std::size_t k = 0; k < leaves_.tensors.size(); ++k) {
    places.emplace(leaves_.tensors[k].unsafeGetTensorImpl(), k);
  }
  leaves_.leaf_edges.clear();
  for (Leaves::LeafEdge leaf_edge : now.leaf_edges) {
    const auto place =
        places.find(now.tensors[leaf_edge.leaf].unsafeGetTensorImpl());
    if (place == places.end()) continue;  // not a leaf in the forward
    leaf_edge.leaf = place->second;
    leaves_.leaf_edges.push_back(leaf_edge);
  }
}

}  // namespace gpipe::internal
