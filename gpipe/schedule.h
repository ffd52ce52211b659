// Schedules as data. Includes no LibTorch.
#pragma once

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/schedule/named.h"
#include "gpipe/schedule/one_forward_one_backward.h"
#include "gpipe/schedule/order.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/text.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/schedule/v_shape.h"
#include "gpipe/schedule/validate.h"
