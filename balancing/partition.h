// Public: exact partition algorithms. No LibTorch.
#pragma once

#include "balancing/solver/partition.h"
