// Skip connections between layers of a pipeline.
#pragma once

#include "gpipe/skip/namespace.h"
#include "gpipe/skip/skippable.h"
#include "gpipe/skip/verify.h"
