// Public: the error for a model that no cut makes fit.
#pragma once

#include "balancing/solver/infeasible.h"
