// The recomputes and backwards of a schedule, on the cells of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "gpipe/runtime/border.h"
#include "gpipe/runtime/cell.h"
#include "gpipe/runtime/copy_log.h"
#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/leaf_sums.h"
#include "gpipe/runtime/non_finite.h"
#include "gpipe/runtime/step.h"
#include "gpipe/runtime/stream.h"

namespace gpipe {

class BackwardPass : public Actor {
 public:
  struct Options {
    // Whether any gradient of the input is.
    bool input_wanted = true;
    // By partition and number of the leaf. Empty: all are.
    std::vector<std::vector<bool>> leaf_wanted;
    // Backward may come again. Not for schedules with backwards in two parts.
    bool keep_graph = false;
    SumOrder order = SumOrder::kAsTheyCome;
    // NonFiniteError, in the cell's backward, for a gradient that is not
    // finite: of its parameters, or that leaves it.
    bool check_finite = false;
  };

  // `border`: if there are stages elsewhere.
  BackwardPass(Stages& stages, Step& step, Options options,
               Border* border = nullptr);

  // The gradients of what the last partition made of a micro-batch. Threads:
  // any, before the micro-batch's backward there.
  void begin(int64_t microbatch, std::vector<at::Tensor> grads);

  // Gradients that a stage here waits for, as ForwardPass::deliver().
  void deliver(const Passage& passage, std::vector<at::Tensor> grads,
               const Moment& ready);

  bool ready(const Action& action) override;
  void fetch(const Action& action, CopyLog* log) override;
  void perform(const Action& action) override;
  Failure place(const Action& action) override;

  // Of the input, by micro-batch.
  std::vector<std::vector<at::Tensor>>& input_grads() { return input_grads_; }
  // Of each leaf: summed in every partition, then over partitions, last first.
  std::vector<at::Tensor> take_leaf_grads(
      const std::vector<SharedLeaf>& leaves);

  // What a leaf of partition j is called: "parameter '3.weight'".
  std::string describe_leaf(int64_t j, const at::Tensor& leaf) const;

 private:
  // The gradients that wait for a cell: those of the boundary, and a passage
  // for each skip tensor.
  struct Inbox {
    std::atomic<std::size_t> missing{0};
    GradParcel grads;
    Moment boundary_ready;
    std::vector<Moment> skip_ready;
  };

  void look_at(int64_t j, const GradParcel& back,
               NonFiniteGradients& non_finite) const;
  void pass_back(int64_t j, int64_t i, GradParcel back);
  // Offers sums to the border.
  void complete(int64_t j, int64_t leaf);
  void complete(int64_t j);
  // To a stage here, or into `leaving`.
  void pass_on(const Passage& passage, std::vector<at::Tensor> grads,
               const Moment& made, std::vector<Outgoing>& leaving);

  Stages& stages_;
  Step& step_;
  const Options options_;
  Border* const border_;
  const bool offers_gradients_;
  // Partitions before this one have nothing to do.
  int64_t first_wanted_ = 0;
  std::vector<std::deque<Inbox>> inboxes_;
  std::vector<LeafSums> sums_;  // by partition
  std::vector<std::vector<at::Tensor>> input_grads_;
};

}  // namespace gpipe
