#include "gpipe/meta.h"

#include "gpipe/libtorch/meta_scope.h"

namespace gpipe {

MetaGuard::MetaGuard()
    : scope_(std::make_unique<MetaScope>(MetaScope::Extent::kNewTensors)) {}

MetaGuard::~MetaGuard() = default;

}  // namespace gpipe
