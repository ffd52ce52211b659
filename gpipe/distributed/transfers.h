// Public: the transport of tensors between the accelerators of two ranks.
#pragma once

#include "gpipe/distributed/channel/transfers.h"
