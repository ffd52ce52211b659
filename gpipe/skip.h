// Skip connections between layers of a pipeline.
#pragma once

#include "gpipe/skip/layout.h"
#include "gpipe/skip/skippable.h"
