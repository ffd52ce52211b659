#include "gpipe/distributed/replicas/member_rows.h"

#include <c10/util/accumulate.h>

namespace gpipe::internal {

std::pair<int64_t, int64_t> rows_of_member(at::IntArrayRef sizes,
                                           std::size_t members, std::size_t k) {
  const int64_t rows = sizes.empty() ? 1 : sizes[0];
  const auto count = static_cast<int64_t>(members);
  const auto member = static_cast<int64_t>(k);
  const int64_t begin = rows * member / count;
  return {begin, rows * (member + 1) / count - begin};
}

int64_t numel_of_member(at::IntArrayRef sizes, std::size_t members,
                        std::size_t k) {
  const int64_t rows = rows_of_member(sizes, members, k).second;
  return sizes.empty() ? rows : rows * c10::multiply_integers(sizes.slice(1));
}

at::Tensor slice_of_member(const at::Tensor& tensor, std::size_t members,
                           std::size_t k) {
  if (!tensor.defined()) return {};
  const auto [begin, rows] = rows_of_member(tensor.sizes(), members, k);
  if (rows == 0) return {};
  const at::Tensor with_rows = tensor.dim() == 0 ? tensor.view({1}) : tensor;
  return with_rows.narrow(0, begin, rows);
}

}  // namespace gpipe::internal
