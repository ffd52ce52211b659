// Public: a local search for cuts, for schedules without a formula. No
// LibTorch.
#pragma once

#include "balancing/solver/refine.h"
