#include "gpipe/distributed/channel/message.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <absl/strings/str_cat.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/safe_numerics.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <ios>
#include <sstream>
#include <string>
#include <type_traits>

#include "gpipe/base/crc32c.h"
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
              spec.repeated ? "a repetition of" : "", " shared tensor ",
              spec.unsplit, "; those that are sent once are 0 to ",
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

namespace {

// The offsets of the header's fields in bytes. Numbers are little-endian. If
// any of this changes, kVersion must change.
constexpr char kMagic[] = "gpipemsg";    // 8 bytes, from 0
constexpr int kVersionAt = 8;            // uint32
constexpr int kTotalAt = 12;             // uint32, bytes of header and overflow
constexpr int kChecksumAt = 16;          // uint32, of the rest of the header
constexpr int kOverflowChecksumAt = 20;  // uint32
constexpr int kCountAt = 24;             // uint32, of tensors
constexpr int kDirectionAt = 72;         // uint8
constexpr int kPredictedAt = 74;         // uint8
constexpr int kZeroAt = 75;              // uint8, always 0
constexpr int kSpecsAt = 88;             // specs, then zeros
constexpr std::size_t kMagicBytes = sizeof(kMagic) - 1;
constexpr uint32_t kVersion = 4;

// Calls visit(offset, field) for each field of a Message that is stored as it
// is, by the type of the field.
template <typename Header, typename Visit>
void visit_fields(Header& message, Visit visit) {
  visit(28, message.id.schedule);
  visit(32, message.id.step);
  visit(40, message.id.from_stage);
  visit(44, message.id.to_stage);
  visit(48, message.id.skip);
  visit(52, message.id.microbatch);
  visit(56, message.rows);
  visit(64, message.total_rows);
  visit(73, message.value_kind);
  visit(76, message.skips);
  visit(80, message.seed);
}

// A spec has one byte each for flags, dtype, the number of dimensions, and
// TensorSpec::unsplit plus 1. Then follow an int64 size and an int64 stride for
// each dimension. LibTorch keeps the numbers of dtypes, since its files contain
// them.
constexpr int kSpecBytes = 4;
constexpr int kDimBytes = 16;
constexpr uint8_t kDefined = 1;
constexpr uint8_t kRequiresGrad = 2;
constexpr uint8_t kShared = 4;
constexpr uint8_t kRepeated = 8;

template <typename T>
void store(uint8_t* to, T value) {
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (std::size_t k = 0; k < sizeof(T); ++k) {
    to[k] = static_cast<uint8_t>(bits >> (8 * k));
  }
}

template <typename T>
T load(const uint8_t* from) {
  std::make_unsigned_t<T> bits = 0;
  for (std::size_t k = 0; k < sizeof(T); ++k) {
    bits |= static_cast<std::make_unsigned_t<T>>(from[k]) << (8 * k);
  }
  return static_cast<T>(bits);
}

// Returns a text such as " 1f 00".
std::string hex_bytes(const uint8_t* bytes, std::size_t count) {
  std::string text;
  for (std::size_t k = 0; k < count; ++k) {
    absl::StrAppend(&text, " ", absl::Hex(bytes[k], absl::kZeroPad2));
  }
  return text;
}

// Returns the checksum of all bytes of a header except the checksum itself.
uint32_t header_checksum(const uint8_t* header) {
  constexpr int kAfter = kChecksumAt + sizeof(uint32_t);
  return crc32c(header + kAfter, kHeaderBytes - kAfter,
                crc32c(header, kChecksumAt));
}

int64_t encoded_bytes(const TensorSpec& spec) {
  return kSpecBytes + kDimBytes * static_cast<int64_t>(spec.sizes.size());
}

// Writes `spec` to `to` and returns the place behind it.
uint8_t* store_spec(uint8_t* to, const TensorSpec& spec) {
  if (spec.defined) {
    to[0] = kDefined | (spec.requires_grad ? kRequiresGrad : 0) |
            (spec.shared ? kShared : 0) | (spec.repeated ? kRepeated : 0);
    to[1] = static_cast<uint8_t>(spec.type);
    to[2] = static_cast<uint8_t>(spec.sizes.size());
    to[3] = static_cast<uint8_t>(spec.unsplit + 1);
  }
  to += kSpecBytes;
  for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
    store<int64_t>(to, spec.sizes[d]);
    store<int64_t>(to + 8, spec.strides[d]);
    to += kDimBytes;
  }
  return to;
}

// Reads tensor `k` of a message that ends at `end` from `from`. Returns the
// place behind it. Throws c10::Error if it is cut off or has unknown bits.
const uint8_t* load_spec(const uint8_t* from, const uint8_t* end, std::size_t k,
                         TensorSpec& spec) {
  TORCH_CHECK(end - from >= kSpecBytes, "a message ends before tensor ", k);
  const uint8_t flags = from[0], type = from[1], dims = from[2];
  TORCH_CHECK((flags & ~(kDefined | kRequiresGrad | kShared | kRepeated)) == 0,
              "tensor ", k, " of a message has bits set that mean nothing");
  spec.defined = (flags & kDefined) != 0;
  spec.requires_grad = (flags & kRequiresGrad) != 0;
  spec.shared = (flags & kShared) != 0;
  spec.repeated = (flags & kRepeated) != 0;
  spec.unsplit = from[3] - 1;
  if (spec.defined) {
    spec.type = static_cast<at::ScalarType>(type);
  } else {
    TORCH_CHECK(type == 0, "tensor ", k,
                " of a message is undefined, but has the dtype number ",
                static_cast<int>(type));
  }
  from += kSpecBytes;
  TORCH_CHECK(end - from >= kDimBytes * dims, "a message ends within the ",
              static_cast<int>(dims), " dimensions of tensor ", k);
  spec.sizes.reserve(dims);
  spec.strides.reserve(dims);
  for (int d = 0; d < dims; ++d) {
    spec.sizes.push_back(load<int64_t>(from));
    spec.strides.push_back(load<int64_t>(from + 8));
    from += kDimBytes;
  }
  return from;
}

bool all_zero(const uint8_t* begin, const uint8_t* end) {
  return std::all_of(begin, end, [](uint8_t byte) { return byte == 0; });
}

}  // namespace

int64_t overflow_of(const std::vector<TensorSpec>& specs) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs) bytes += encoded_bytes(spec);
  return std::max<int64_t>(0, kSpecsAt + bytes - kHeaderBytes);
}

std::vector<uint8_t> encode(const Message& message) {
  check_message(message);
  const int64_t overflow = overflow_of(message.tensors);
  TORCH_CHECK(overflow <= kMaxOverflowBytes, "the sizes and strides of the ",
              message.tensors.size(), " tensors of a message take ", overflow,
              " bytes beyond its header; at most ", kMaxOverflowBytes,
              " can be sent: put some of the tensors together");

  std::vector<uint8_t> data(kHeaderBytes + overflow);
  uint8_t* const header = data.data();
  std::memcpy(header, kMagic, kMagicBytes);
  store<uint32_t>(header + kVersionAt, kVersion);
  store<uint32_t>(header + kTotalAt, static_cast<uint32_t>(data.size()));
  store<uint32_t>(header + kCountAt,
                  static_cast<uint32_t>(message.tensors.size()));
  visit_fields(message, [&](int at, auto field) { store(header + at, field); });
  header[kDirectionAt] = static_cast<uint8_t>(message.id.direction);
  header[kPredictedAt] = message.as_predicted ? 1 : 0;

  uint8_t* to = header + kSpecsAt;
  for (const TensorSpec& spec : message.tensors) to = store_spec(to, spec);
  store<uint32_t>(header + kOverflowChecksumAt,
                  crc32c(header + kHeaderBytes, overflow));
  store<uint32_t>(header + kChecksumAt, header_checksum(header));
  return data;
}

int64_t overflow_bytes(const uint8_t* header) {
  TORCH_CHECK(std::memcmp(header, kMagic, kMagicBytes) == 0,
              "what was received is not a message of gpipe (it begins with the "
              "bytes",
              hex_bytes(header, kMagicBytes),
              "); give the pipeline a process group that nothing else uses");
  const auto version = load<uint32_t>(header + kVersionAt);
  TORCH_CHECK(version == kVersion, "received a message in version ", version,
              " of gpipe's wire format, but this rank reads version ", kVersion,
              "; run the same gpipe on all ranks");
  const auto checksum = load<uint32_t>(header + kChecksumAt);
  TORCH_CHECK(checksum == header_checksum(header),
              "the header of a message is damaged: its checksum is 0x",
              std::hex, checksum, ", but its bytes give 0x",
              header_checksum(header), "; check the network between the ranks");
  const int64_t total = load<uint32_t>(header + kTotalAt);
  TORCH_CHECK(
      kHeaderBytes <= total && total <= kHeaderBytes + kMaxOverflowBytes,
      "the header of a message says that it has ", total,
      " bytes with its "
      "overflow; there can be ",
      kHeaderBytes, " to ", kHeaderBytes + kMaxOverflowBytes);
  return total - kHeaderBytes;
}

bool is_as_predicted(const uint8_t* header) {
  return header[kPredictedAt] == 1;
}

Message decode(const uint8_t* data, int64_t size) {
  TORCH_CHECK(size >= kHeaderBytes, "a message is cut off: its header has ",
              kHeaderBytes, " bytes, but there are ", size);
  const int64_t overflow = overflow_bytes(data);
  TORCH_CHECK(size == kHeaderBytes + overflow, "a message ",
              size < kHeaderBytes + overflow ? "is cut off" : "is too long",
              ": its header and overflow have ", kHeaderBytes + overflow,
              " bytes, but there are ", size);
  const auto checksum = load<uint32_t>(data + kOverflowChecksumAt);
  TORCH_CHECK(checksum == crc32c(data + kHeaderBytes, overflow),
              "the overflow of a message is damaged: its checksum is 0x",
              std::hex, checksum, ", but its ", std::dec, overflow,
              " bytes give 0x", std::hex, crc32c(data + kHeaderBytes, overflow),
              "; check the network between the ranks");
  const uint8_t direction = data[kDirectionAt];
  TORCH_CHECK(direction <= static_cast<uint8_t>(Direction::kBackward),
              "a message has the direction ", static_cast<int>(direction),
              "; there are 0 (forward) and 1 (backward)");

  Message message;
  visit_fields(message, [&](int at, auto& field) {
    field = load<std::decay_t<decltype(field)>>(data + at);
  });
  message.id.direction = static_cast<Direction>(direction);
  message.as_predicted = is_as_predicted(data);

  const uint8_t* from = data + kSpecsAt;
  const uint8_t* const end = data + size;
  const auto count = load<uint32_t>(data + kCountAt);
  // Checked before memory is allocated for them.
  TORCH_CHECK(count <= kMaxMessageTensors && kSpecBytes * count <= end - from,
              "a message says that it has ", count, " tensors, more than its ",
              size, " bytes can describe");
  message.tensors.resize(count);
  for (std::size_t k = 0; k < count; ++k) {
    from = load_spec(from, end, k, message.tensors[k]);
  }
  // An overflow exists only if it is full of specs.
  TORCH_CHECK(data[kPredictedAt] <= 1 && data[kZeroAt] == 0 &&
                  all_zero(from, end) && (overflow == 0 || from == end),
              "a message has bytes set that mean nothing, or more of them than "
              "it needs; run the same gpipe on all ranks");
  check_message(message);
  return message;
}

}  // namespace gpipe::internal
