// Public: gathers bytes from all ranks of a world.
#pragma once

#include "gpipe/distributed/world/gather.h"
