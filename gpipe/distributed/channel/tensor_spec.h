// The descriptions of tensors that are sent, and their bytes.
//
// Thread-safe: all functions are pure.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpipe::internal {

// The largest number of dimensions of a tensor that can be sent.
constexpr int64_t kMaxMessageDims = 64;

// The largest TensorSpec::unsplit. Elements after it are sent each time.
constexpr int kMaxUnsplit = 253;

// The description of a tensor as it is sent. `sizes` and `strides` (in
// elements) have one entry for each dimension. An undefined tensor has none and
// no bytes.
struct TensorSpec {
  bool defined = false;
  bool requires_grad = false;
  at::ScalarType type = at::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  bool shared = false;  // see Activation
  // The element of the pipeline's input that the tensor is, if all
  // micro-batches share it; -1 otherwise. See Activation.
  int unsplit = -1;
  // Whether the tensor has gone to this receiver before in this step. Then its
  // bytes are not sent again.
  bool repeated = false;

  // Returns the number of bytes that are sent: 0 if `repeated`, else bytes().
  int64_t sent_bytes() const { return repeated ? 0 : bytes(); }
  // Returns the number of bytes: the product of the sizes times the element
  // size; 0 if undefined. Throws c10::Error if a size is negative, or if the
  // product does not fit into an int64_t.
  int64_t bytes() const;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// Throws c10::Error if a tensor with `spec`, which may hold any numbers, cannot
// be sent.
// `k`: the tensor's index in its message, for the error text.
void check_spec(const TensorSpec& spec, std::size_t k);

// Returns how `tensor`, on any device, is sent. If it is dense and does not
// overlap, its memory is sent as it is, with its strides (channels_last stays
// channels_last); else its elements are sent contiguously. Throws c10::Error
// for a tensor that is sparse, quantized or nested, because its bytes are not
// its elements.
TensorSpec spec_of(const at::Tensor& tensor, bool requires_grad);

// Returns the bytes that spec_of() describes: a uint8 tensor of one dimension
// and spec.bytes() elements, on the same device; empty for an undefined tensor.
// It shares the memory of `tensor` and keeps it alive. It is a copy if the
// memory is not dense, or does not hold the values (a lazy conjugate). Throws
// c10::Error as spec_of() does.
at::Tensor bytes_of(const at::Tensor& tensor);

// Returns a new uninitialized tensor without requires_grad; undefined if the
// spec is. Receive into its bytes_of(). `pinned`: whether to use host memory
// that accelerators can access.
at::Tensor empty_like_spec(const TensorSpec& spec,
                           c10::Device device = c10::kCPU, bool pinned = false);

}  // namespace gpipe::internal
