#include "models/zoo/amoebanet_genotype.h"

namespace gpipe::models::amoebanet {

Genotype normal_genotype() {
  Genotype normal;
  normal.pairs = {
      {{1, Operation::kConv1x1}, {1, Operation::kMaxPool3x3}},
      {{1, Operation::kNone}, {0, Operation::kConv1x7Then7x1}},
      {{0, Operation::kConv1x1}, {0, Operation::kConv1x7Then7x1}},
      {{2, Operation::kMaxPool3x3}, {2, Operation::kNone}},
      {{1, Operation::kAvgPool3x3}, {5, Operation::kConv1x1}},
  };
  normal.concat = {0, 3, 4, 6};
  return normal;
}

Genotype reduction_genotype() {
  Genotype reduction;
  reduction.pairs = {
      {{0, Operation::kMaxPool2x2}, {0, Operation::kMaxPool3x3}},
      {{2, Operation::kNone}, {1, Operation::kConv3x3}},
      {{2, Operation::kConv1x7Then7x1}, {2, Operation::kMaxPool3x3}},
      {{3, Operation::kNone}, {1, Operation::kMaxPool2x2}},
      {{2, Operation::kAvgPool3x3}, {3, Operation::kConv1x1}},
  };
  reduction.concat = {4, 5, 6};
  return reduction;
}

}  // namespace gpipe::models::amoebanet
