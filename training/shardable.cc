#include "training/shardable.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>

#include <typeinfo>

namespace gpipe {

void check_shardable(const torch::optim::Optimizer& optimizer) {
  const bool is_lbfgs =
      dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr;
  TORCH_CHECK_TYPE(!is_lbfgs, "a ", c10::demangle(typeid(optimizer).name()),
                   " cannot be spread over replicas (shard_optimizer): each of "
                   "its steps depends on the gradients of all parameters as "
                   "one vector, and a replica has those of its shards only; "
                   "use SGD, Adam, AdamW, RMSprop or Adagrad, or do not shard");
}

}  // namespace gpipe
