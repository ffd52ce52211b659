// Public: failures of ranks.
#pragma once

#include "gpipe/distributed/world/error.h"
