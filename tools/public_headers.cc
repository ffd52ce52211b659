// Includes all public headers, and fails to compile if one of them gives a
// warning that a user's project may treat as an error. //tools:sources_test
// checks that no header is missing. LibTorch's own headers are system headers.
#if defined(__clang__)
// What g++ calls -Wshadow and -Wconversion.
#pragma clang diagnostic error "-Wshadow-all"
#pragma clang diagnostic error "-Wconversion"
#pragma clang diagnostic ignored "-Wsign-conversion"
#pragma clang diagnostic error "-Wextra"
#pragma clang diagnostic error "-Wpedantic"
#else
#pragma GCC diagnostic error "-Wshadow"
#pragma GCC diagnostic error "-Wconversion"
#pragma GCC diagnostic error "-Wextra"
#pragma GCC diagnostic error "-Wpedantic"
#endif
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "balancing/balancing.h"
#include "balancing/infeasible.h"
#include "balancing/machines.h"
#include "balancing/memory_profile.h"
#include "balancing/partition.h"
#include "balancing/plan.h"
#include "balancing/plan_replicas.h"
#include "balancing/profile.h"
#include "balancing/refine.h"
#include "balancing/stage_costs.h"
#include "balancing/time_profile.h"
#include "gpipe/base/instruments.h"
#include "gpipe/batch_norm.h"
#include "gpipe/checkpoint.h"
#include "gpipe/device_memory.h"
#include "gpipe/distributed/environment.h"
#include "gpipe/distributed/error.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/timeline.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/distributed/world_options.h"
#include "gpipe/eval_scope.h"
#include "gpipe/failure.h"
#include "gpipe/first_output.h"
#include "gpipe/gpipe.h"
#include "gpipe/meta.h"
#include "gpipe/microbatches.h"
#include "gpipe/non_finite_error.h"
#include "gpipe/phase.h"
#include "gpipe/pipeline_module.h"
#include "gpipe/placement.h"
#include "gpipe/recomputed.h"
#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/sequential.h"
#include "gpipe/simulation.h"
#include "gpipe/skip.h"
#include "gpipe/summary.h"
#include "gpipe/train.h"
#include "gpipe/version.h"
#include "gpipe/weighted_loss.h"
#include "models/amoebanet.h"
#include "models/exported/exported.h"
#include "models/lora.h"
#include "models/lora_options.h"
#include "models/named.h"
#include "models/resnet.h"
#include "models/resnet_names.h"
#include "models/transformer.h"
#include "models/unet.h"
#include "models/weights/hugging_face.h"
#include "models/weights/names.h"
#include "models/weights/run_shard.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "models/weights/torch_file.h"
#include "training/autocast.h"
#include "training/generator_states.h"
#include "training/grad_scaler.h"
#include "training/kineto.h"
#include "training/learning_rate.h"
#include "training/metrics_log.h"
#include "training/non_finite.h"
#include "training/optimizer_state.h"
#include "training/run_files.h"
#include "training/run_state.h"
#include "training/shardable.h"
#include "training/state_on_host.h"
#include "training/trace.h"

namespace {

// Templates give most of their warnings where they are used.
[[maybe_unused]] void use(const torch::Tensor& input) {
  torch::nn::Sequential model(gpipe::Recomputed(torch::nn::Linear(4, 4)),
                              gpipe::first_output(torch::nn::Linear(4, 4)));
  gpipe::GPipe pipeline(model, gpipe::GPipeOptions({1, 1}).chunks(2));
  pipeline->forward(input);
  gpipe::checkpoint([](const torch::Tensor& x) { return x * 2; }, input);
  gpipe::summary(pipeline, input);
  gpipe::balancing::balance_by_time(2, model, input);
  gpipe::balancing::balance_by_size(2, model, input);
  gpipe::parallelize_module(model, "cpu");
}

}  // namespace
