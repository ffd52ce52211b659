#include "gpipe/distributed/channel/message.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <c10/util/safe_numerics.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cstddef>
#include <ios>
#include <sstream>

#include "gpipe/runtime/cell/value.h"

namespace gpipe::internal {
namespace {

// Returns whether the dtype is known and not quantized. A quantized tensor has
// more than its bytes.
bool can_be_sent(at::ScalarType type) {
  return at::ScalarType::Byte <= type && type < at::ScalarType::Undefined &&
         !c10::isQIntType(type);
}

// Returns whether the elements fill their memory exactly: each element has its
// own place, and none is outside. Same as LibTorch's
// is_non_overlapping_and_dense(), but safe for unchecked numbers if
// spec.bytes() does not throw.
bool is_dense(const TensorSpec& spec) {
  std::vector<std::size_t> order;  // dimensions of size > 1, innermost first
  bool empty = false;
  for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
    int64_t extent = 0;
    if (spec.strides[d] < 0 ||
        c10::mul_overflows(spec.sizes[d], spec.strides[d], &extent)) {
      return false;
    }
    empty |= spec.sizes[d] == 0;
    if (spec.sizes[d] > 1) order.push_back(d);
  }
  if (empty) return true;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return spec.strides[a] < spec.strides[b];
  });
  int64_t stride = 1;
  for (const std::size_t d : order) {
    if (spec.strides[d] != stride) return false;
    stride *= spec.sizes[d];
  }
  return true;
}

// Returns whether the memory of `tensor` holds the bytes that spec_of()
// describes. A lazy conjugate or negative has the memory of the original
// tensor; LibTorch's efficient zero tensor has none.
bool lies_as_sent(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && !tensor.is_conj() &&
         !tensor.is_neg() && !tensor._is_zerotensor();
}

}  // namespace

int64_t TensorSpec::bytes() const {
  if (!defined) return 0;
  int64_t bytes = static_cast<int64_t>(c10::elementSize(type));
  bool empty = false, overflows = false;
  for (const int64_t size : sizes) {
    TORCH_CHECK(size >= 0, "a tensor cannot have sizes ",
                at::IntArrayRef(sizes), ": one of them is negative");
    empty |= size == 0;
    // Checked for empty tensors, too, because strides are such products.
    overflows |= c10::mul_overflows(bytes, std::max<int64_t>(size, 1), &bytes);
  }
  TORCH_CHECK(!overflows, "a tensor cannot have sizes ", at::IntArrayRef(sizes),
              ": their product is more than 64 bits hold");
  return empty ? 0 : bytes;
}

void check_spec(const TensorSpec& spec, std::size_t k) {
  if (!spec.defined) {
    TORCH_CHECK(
        !spec.requires_grad && !spec.shared && spec.sizes.empty() &&
            spec.strides.empty() && spec.unsplit < 0 && !spec.repeated,
        "tensor ", k,
        " of a message is undefined, but has sizes or strides, requires grad, "
        "is shared or repeated; an undefined tensor is none of them");
    return;
  }
  TORCH_CHECK(-1 <= spec.unsplit && spec.unsplit <= kMaxUnsplit &&
                  (!spec.repeated || spec.unsplit >= 0),
              "tensor ", k, " of a message is ",
              spec.repeated ? "a repetition of" : "", " input element ",
              spec.unsplit, "; elements that are sent once are 0 to ",
              kMaxUnsplit);
  TORCH_CHECK(can_be_sent(spec.type), "tensor ", k,
              " of a message has the dtype number ",
              static_cast<int>(static_cast<uint8_t>(spec.type)), " (",
              spec.type,
              "), which cannot be sent; run the same LibTorch on all ranks, "
              "and send no quantized tensors");
  TORCH_CHECK(!spec.requires_grad || c10::isFloatingType(spec.type) ||
                  c10::isComplexType(spec.type),
              "tensor ", k, " of a message has dtype ", spec.type,
              " and requires grad; only floating point and complex tensors "
              "can");
  TORCH_CHECK(spec.sizes.size() <= kMaxMessageDims, "tensor ", k,
              " of a message has ", spec.sizes.size(), " dimensions; at most ",
              kMaxMessageDims, " can be sent");
  TORCH_CHECK(spec.sizes.size() == spec.strides.size(), "tensor ", k,
              " of a message has ", spec.sizes.size(), " sizes, but ",
              spec.strides.size(), " strides");
  spec.bytes();
  TORCH_CHECK(is_dense(spec), "tensor ", k, " of a message has sizes ",
              at::IntArrayRef(spec.sizes), " and strides ",
              at::IntArrayRef(spec.strides),
              ", which do not fill its memory exactly; only dense tensors are "
              "sent (spec_of() makes others contiguous)");
}

TensorSpec spec_of(const at::Tensor& tensor, bool requires_grad) {
  TensorSpec spec;
  if (!tensor.defined()) return spec;
  TORCH_CHECK(!tensor.is_nested(),
              "a nested tensor cannot be sent to another rank; send its "
              "tensors in a std::vector");
  TORCH_CHECK(tensor.layout() == c10::kStrided, "a tensor of layout ",
              tensor.layout(),
              " cannot be sent to another rank; make it dense with to_dense() "
              "first");
  TORCH_CHECK(!tensor.is_quantized(), "a tensor of dtype ",
              tensor.scalar_type(),
              " cannot be sent to another rank; make it one of numbers with "
              "dequantize() first");
  spec.defined = true;
  spec.requires_grad = requires_grad;
  spec.type = tensor.scalar_type();
  spec.sizes = tensor.sizes().vec();
  if (tensor.is_non_overlapping_and_dense()) {
    spec.strides = tensor.strides().vec();
  } else {
    const auto strides = c10::contiguous_strides(tensor.sizes());
    spec.strides.assign(strides.begin(), strides.end());
  }
  return spec;
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  const TensorSpec spec = spec_of(tensor, /*requires_grad=*/false);
  if (!spec.defined) return at::empty({0}, at::kByte);
  at::Tensor sent = tensor;
  if (!lies_as_sent(tensor)) {
    sent = empty_like_spec(spec, tensor.device());
    sent.copy_(tensor);
  }
  return sent.detach().as_strided({sent.numel()}, {1}).view(at::kByte);
}

at::Tensor empty_like_spec(const TensorSpec& spec, c10::Device device,
                           bool pinned) {
  if (!spec.defined) return {};
  return at::empty_strided(
      spec.sizes, spec.strides,
      at::TensorOptions(spec.type).device(device).pinned_memory(pinned));
}

std::string MessageId::to_string() const {
  const bool forward = direction == Direction::kForward;
  std::ostringstream text;
  if (skip >= 0) {
    text << (forward ? "" : "the gradient of ") << "skip tensor " << skip;
  } else if (forward) {
    text << "the output of stage " << from_stage;
  } else {
    text << "the gradient of stage " << to_stage << "'s output";
  }
  text << " for micro-batch " << microbatch << " of step " << step << ",";
  if (skip >= 0 || !forward) text << " from stage " << from_stage;
  if (skip >= 0 || forward) text << " to stage " << to_stage;
  return text.str();
}

void check_message(const Message& message) {
  const auto count = message.tensors.size();
  TORCH_CHECK(count <= kMaxMessageTensors, "a message has ", count,
              " tensors; at most ", kMaxMessageTensors,
              " can be sent in one: put some of them together");
  TORCH_CHECK(0 <= message.rows && message.rows <= message.total_rows,
              "a message says that its micro-batch has ", message.rows, " of ",
              message.total_rows, " rows, which is impossible");
  constexpr auto kLast = static_cast<int>(Value::Kind::kTuple);
  TORCH_CHECK(message.value_kind <= kLast, "a message holds a value of kind ",
              static_cast<int>(message.value_kind), "; kinds end at ", kLast);
  const auto kind = static_cast<Value::Kind>(message.value_kind);
  TORCH_CHECK(
      message.skips <= count && (message.id.skip < 0 || message.skips == count),
      "a message says that ", message.skips, " of its ", count,
      " tensors are skip tensors, which is impossible");
  if (message.id.direction == Direction::kForward && message.id.skip < 0) {
    const auto rest = count - message.skips;
    TORCH_CHECK(kind != Value::Kind::kTensor || rest == 1,
                "a message holds one tensor by its kind, but specs of ", rest);
    TORCH_CHECK(
        kind != Value::Kind::kTuple || (1 <= rest && rest <= kMaxTupleSize),
        "a message holds a tuple by its kind, of 1 to ", kMaxTupleSize,
        " tensors, but specs of ", rest);
  }
  for (std::size_t k = 0; k < count; ++k) check_spec(message.tensors[k], k);
}

void check_expected(const MessageId& got, const MessageId& expected) {
  TORCH_CHECK(got.step == expected.step, "received a message of step ",
              got.step, " (", got.to_string(), "), but this rank is in step ",
              expected.step, " and expected ", expected.to_string(),
              "; all ranks must make the same calls in the same order");
  TORCH_CHECK(got.schedule == expected.schedule,
              "the ranks run different schedules: received ", got.to_string(),
              " of a schedule with the checksum 0x", std::hex, got.schedule,
              ", but this rank's has 0x", expected.schedule,
              "; give all ranks the same schedule");
  TORCH_CHECK(got == expected, "received ", got.to_string(), ", but expected ",
              expected.to_string(),
              "; all ranks must run the same actions in the same order");
}

}  // namespace gpipe::internal
