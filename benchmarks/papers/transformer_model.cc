#include "benchmarks/papers/transformer_model.h"

#include "models/transformer.h"

namespace gpipe::benchmarks {

std::vector<int64_t> size_of(int64_t blocks, const TransformerShape& shape) {
  return {blocks, shape.width, shape.tokens, shape.vocabulary};
}

torch::nn::Sequential transformer_of(const Experiment& experiment) {
  const auto& size = experiment.size;
  const int64_t width = size.at(1);
  return models::transformer(models::TransformerOptions()
                                 .num_layers(size.at(0))
                                 .width(width)
                                 .feed_forward(4 * width)
                                 .heads(width / 64)
                                 .sequence(size.at(2))
                                 .vocabulary(size.at(3)));
}

std::vector<int64_t> even_balance(int64_t blocks, int64_t partitions) {
  // A block has two layers: attention and feed-forward.
  const int64_t layers = partitions > blocks ? 1 : 2;
  const int64_t pieces = 2 * blocks / layers;
  std::vector<int64_t> balance;
  for (int64_t j = 0; j < partitions; ++j) {
    balance.push_back(
        layers * (pieces / partitions + (j < pieces % partitions ? 1 : 0)));
  }
  balance.front() += 1;  // the embedding
  balance.back() += 2;   // the norm and the output
  return balance;
}

}  // namespace gpipe::benchmarks
