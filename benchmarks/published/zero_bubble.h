// The settings of "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241).
#pragma once

#include <string>

#include "benchmarks/published/stages.h"

namespace gpipe::benchmarks {

// One row of Tables 5 and 9.
struct ZeroBubbleSetting {
  const char* model;
  int ranks, microbatches;
  // Of the model (Table 3). 1F1B-I has one layer per stage. The first and the
  // last rank have one layer less than the others, so each rank has
  // (layers + 2) / ranks stages.
  int layers;
  // Table 9, in milliseconds. The last one is a copy between ranks.
  double forward, backward_input, backward_weight, latency;
  // Table 5: the bubble rates of 1F1B, 1F1B-I, ZB-H1 and ZB-H2.
  double one_forward, interleaved, h1, h2;

  StageTimes times() const {
    return {forward, backward_input, backward_weight, latency};
  }
};

inline constexpr ZeroBubbleSetting kZeroBubbleSettings[] = {
    {"1.5B", 8, 24, 22, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 0.1585,
     0.1083},
    {"1.5B", 8, 32, 22, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 0.1242,
     0.0837},
    {"1.5B", 8, 64, 22, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443, 0.0674,
     0.0444},
    {"6.2B", 8, 24, 30, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.0808, 0.1323,
     0.0698},
    {"6.2B", 8, 32, 30, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.0628, 0.1045,
     0.0559},
    {"6.2B", 8, 64, 30, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0320, 0.0554,
     0.0294},
    {"14.6B", 16, 48, 46, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1104, 0.1397,
     0.0672},
    {"14.6B", 16, 64, 46, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.0852, 0.1088,
     0.0516},
    {"14.6B", 16, 128, 46, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0445, 0.0576,
     0.0266},
    {"28.3B", 32, 96, 62, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1493, 0.1421,
     0.0641},
    {"28.3B", 32, 128, 62, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1164, 0.1106,
     0.0490},
    {"28.3B", 32, 256, 62, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0624, 0.0594,
     0.0257},
};

// Returns m (F + B + W), the time for which each rank works.
inline double work_of(const ZeroBubbleSetting& setting) {
  return setting.microbatches *
         (setting.forward + setting.backward_input + setting.backward_weight);
}

// Returns the bubble rate of section 5.3: the idle part of the longest rank's
// time.
inline double bubble_rate(const Timeline& timeline,
                          const ZeroBubbleSetting& setting) {
  const double cost = longest_rank(timeline);
  return (cost - work_of(setting)) / cost;
}

inline std::string text_of(const ZeroBubbleSetting& setting) {
  return std::string(setting.model) + ", " + std::to_string(setting.ranks) +
         " ranks, " + std::to_string(setting.microbatches) + " micro-batches";
}

}  // namespace gpipe::benchmarks
