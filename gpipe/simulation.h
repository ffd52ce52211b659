// Simulates a schedule (time, bottlenecks, memory) and draws it.
// Includes no LibTorch.
//
//   gpipe::Costs costs;
//   costs.forward = {0.010, 0.012};   // seconds, per stage
//   costs.backward = {0.020, 0.024};
//   const auto schedule = gpipe::one_forward_one_backward(2, 8);
//   const auto timeline = gpipe::simulate(schedule, costs);
//   std::cout << timeline.makespan << "\n" << gpipe::to_text(timeline);
#pragma once

#include "gpipe/simulation/bottlenecks.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/draw.h"
#include "gpipe/simulation/memory.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/simulation/timeline.h"
