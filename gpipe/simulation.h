// Public: how long a schedule takes. No LibTorch.
#pragma once

#include "gpipe/simulation/simulate.h"
