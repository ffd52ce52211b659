// Public: the cut with the shortest GPipe schedule. No LibTorch.
#pragma once

#include "balancing/solver/fill_drain.h"
