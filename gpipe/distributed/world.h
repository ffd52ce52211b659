// Public: the ranks of a program and the connections between them.
#pragma once

#include "gpipe/distributed/world/environment.h"
#include "gpipe/distributed/world/world.h"
#include "gpipe/distributed/world/world_options.h"
