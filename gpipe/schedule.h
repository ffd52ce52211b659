// Public: schedules as data. No LibTorch.
#pragma once

#include "gpipe/schedule/fill_drain.h"
#include "gpipe/schedule/order.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/transform.h"
