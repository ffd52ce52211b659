#include "benchmarks/amoebanetd_rows.h"

#include "benchmarks/workloads.h"
#include "models/amoebanet.h"

namespace gpipe::benchmarks {

torch::nn::Sequential amoebanetd_of(const Experiment& experiment) {
  return models::amoebanetd(kImageNetClasses, experiment.size.at(0),
                            experiment.size.at(1));
}

}  // namespace gpipe::benchmarks
