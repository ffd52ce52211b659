#include "gpipe/runtime/cell/output_rows.h"

#include <c10/util/Exception.h>

#include <cstddef>

namespace gpipe::internal {
namespace {

std::string count_of_rows(int64_t rows) {
  return std::to_string(rows) + (rows == 1 ? " row" : " rows");
}

}  // namespace

std::string describe_other_rows(const std::vector<Value>& outputs,
                                const std::vector<int64_t>& rows) {
  if (outputs.size() < 2) return "";
  const Value& first = outputs.front();
  for (std::size_t k = 0; k < first.tensors().size(); ++k) {
    int64_t multiple = 0;  // of the rows, in micro-batch 0
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto& tensors = outputs[i].tensors();
      // gather() refuses outputs that do not fit together.
      if (k >= tensors.size() || !tensors[k].defined() ||
          tensors[k].dim() == 0) {
        break;
      }
      const int64_t found = tensors[k].size(0);
      if (i == 0) multiple = rows[0] > 0 ? found / rows[0] : 0;
      if (multiple > 0 && found == multiple * rows[i]) continue;
      const std::string element =
          first.kind() == Value::Kind::kTensor
              ? "the output"
              : c10::str("element ", k, " of the output");
      return c10::str(
          element, " of micro-batch ", i, " (of ", outputs.size(), ") has ",
          count_of_rows(found), ", but the input of that micro-batch has ",
          count_of_rows(rows[i]),
          ". Outputs are concatenated: a layer that reduces over rows, such as "
          "mean(0), gives a result for each micro-batch, and not one for the "
          "mini-batch. Reduce after forward(), or use one micro-batch. If each "
          "output row depends on rows of its own micro-batch alone, ignore "
          "this warning");
    }
  }
  return "";
}

void warn_of_other_rows(const std::vector<Value>& outputs,
                        const std::vector<int64_t>& rows) {
  const std::string text = describe_other_rows(outputs, rows);
  if (text.empty()) return;
  TORCH_WARN_ONCE(text);
}

}  // namespace gpipe::internal
