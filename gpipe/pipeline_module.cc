#include "gpipe/pipeline_module.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gpipe/eval_scope.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/step/train_step.h"
#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/transform.h"

namespace gpipe {

PipelineModule::PipelineModule(const std::string& name, std::string devices)
    : torch::nn::Module("gpipe::" + name),
      devices_option_(std::move(devices)) {}

std::vector<torch::Tensor> PipelineModule::optimizer_parameters() const {
  std::vector<torch::Tensor> each_once;
  std::unordered_set<const c10::TensorImpl*> seen;  // layers may share some
  for (torch::Tensor& parameter : parameters()) {
    if (!parameter.requires_grad()) continue;
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      each_once.push_back(std::move(parameter));
    }
  }
  return each_once;
}

int64_t PipelineModule::size() const {
  return std::accumulate(balance().begin(), balance().end(), int64_t{0});
}

std::shared_ptr<torch::nn::Module> PipelineModule::operator[](
    int64_t index) const {
  const int64_t from_start = index < 0 ? index + size() : index;
  TORCH_CHECK_INDEX(0 <= from_start && from_start < size(), "layer index ",
                    index, " is out of range (layers: ", size(), ")");
  const auto found = std::ranges::lower_bound(indices_, from_start);
  if (found == indices_.end() || *found != from_start) return nullptr;
  return layers_[found - indices_.begin()].ptr();
}

void PipelineModule::add_layer(const internal::Layer& layer) {
  register_module(layer.name, layer.module.ptr());
  layers_.push_back(layer.module);
  indices_.push_back(layer.index);
}

void PipelineModule::check_layers() const {
  if (source_) source_->check();
  // In any order, and with modules that a user has registered besides, such as
  // a loss with parameters.
  const auto modules = children();
  const std::unordered_set registered(modules.begin(), modules.end());
  for (std::size_t k = 0; k < layers_.size(); ++k) {
    TORCH_CHECK_VALUE(
        registered.contains(layers_[k].ptr()), "layer ", indices_[k],
        " has been replaced in the pipeline or unregistered from it, but the "
        "pipeline runs the layers that it was made of; change the Sequential, "
        "and make the pipeline of it again");
  }
}

StepResult PipelineModule::run_train_step(const internal::Batch& input,
                                          const internal::Batch& target,
                                          const internal::LossFunction& loss,
                                          const Schedule& schedule,
                                          const TrainOptions& options) {
  // Keeps this object alive if the last handle is dropped during the call.
  const auto self = weak_from_this().lock();
  return run_step({input, target, &loss, &schedule,
                   [this] {
                     return internal::StepMode{
                         is_training() ? checkpoint() : Checkpoint::kNever,
                         is_training()};
                   },
                   options});
}

StepResult PipelineModule::run_forward(const internal::Batch& input,
                                       const internal::Batch& target,
                                       const internal::LossFunction* loss,
                                       const TrainOptions& options,
                                       bool evaluate) {
  const auto self = weak_from_this().lock();
  const c10::AutoGradMode no_graph(false);
  TORCH_CHECK_VALUE(!rank_of_stage().empty(),
                    "a pipeline without layers cannot be evaluated");
  return run_step(
      {input, target, loss, /*schedule=*/nullptr,
       [&] {
         internal::StepMode mode;
         mode.schedule =
             select(breadth_first(rank_of_stage(),
                                  static_cast<int>(count_microbatches(input))),
                    [](const Action& action) {
                      return action.kind == ActionKind::kForward;
                    });
         if (evaluate) mode.scope = std::make_shared<EvalScope>(*this);
         mode.training = is_training();
         return mode;
       },
       options});
}

void PipelineModule::refuse_to_move() const {
  TORCH_CHECK_TYPE(false, "denied to move parameters and buffers, because ",
                   name().substr(std::string("gpipe::").size()),
                   " should manage device placement; choose the devices in ",
                   devices_option_, " (to(dtype) is allowed)");
}

void PipelineModule::to(torch::Device, torch::Dtype, bool) { refuse_to_move(); }
void PipelineModule::to(torch::Device, bool) { refuse_to_move(); }
void PipelineModule::cuda() { refuse_to_move(); }
void PipelineModule::cpu() { refuse_to_move(); }

std::shared_ptr<torch::nn::Module> PipelineModule::clone(
    const std::optional<torch::Device>&) const {
  const std::string type = name().substr(std::string("gpipe::").size());
  TORCH_CHECK_TYPE(false, "a ", type, " cannot be cloned; make another ", type,
                   " of a clone of the Sequential "
                   "(std::dynamic_pointer_cast<torch::nn::SequentialImpl>("
                   "model->clone())), or copy the values with "
                   "gpipe::load_state_dict(*copy, gpipe::state_dict(*this)) "
                   "(models/weights/state_dict.h)");
}

void PipelineModule::to(torch::Dtype dtype, bool non_blocking) {
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;
  for (const auto& tensors : {parameters(), buffers()}) {
    for (const at::Tensor& each : tensors) {
      if (each.is_floating_point() || each.is_complex()) continue;
      kept.emplace_back(each, each.variable_data());
    }
  }
  const auto restore = [&] {
    for (const auto& [tensor, values] : kept) tensor.set_data(values);
  };
  try {
    torch::nn::Module::to(dtype, non_blocking);
  } catch (...) {
    restore();  // a second call would take them for floating-point numbers
    throw;
  }
  restore();
}

}  // namespace gpipe
