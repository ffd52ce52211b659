#include "gpipe/distributed/runner/foreign_parameters.h"

#include <c10/util/Exception.h>

#include <utility>

namespace gpipe::internal {

void ForeignParameters::add(std::string name, int rank,
                            const at::Tensor& parameter) {
  if (!parameter.defined()) return;
  all_.emplace(
      parameter.unsafeGetTensorImpl(),
      Foreign{
          std::move(name), rank,
          c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(
              parameter.getIntrusivePtr())});
}

void ForeignParameters::check(const std::vector<SharedLeaf>& leaves) const {
  for (const SharedLeaf& leaf : leaves) {
    const auto found = all_.find(leaf.tensor.unsafeGetTensorImpl());
    TORCH_CHECK_VALUE(
        found == all_.end(), "a layer of partition ", leaf.places.front().first,
        " has captured parameter '", found->second.name,
        "' of a layer on rank ", found->second.rank,
        ". The layer has its own copy of it: the parameter would lose this "
        "part of its gradient, and the copy would never be updated; pass it "
        "as a skip tensor (gpipe/skip.h), or choose a balance that puts both "
        "layers on one rank");
  }
}

}  // namespace gpipe::internal
