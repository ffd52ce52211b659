// Public, by way of train.h: the error of TrainOptions::check_finite, and the
// checks themselves.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpipe {

// A value or a gradient holds a NaN or an infinity. The text says which one,
// and how many of its elements are; last_failure() where it was.
class NonFiniteError : public c10::Error {
 public:
  using c10::Error::Error;
};

// "3 of 64 elements are nan and 1 inf"; nullopt if all are finite, if there are
// none, and for undefined tensors, integers, and tensors without values (of the
// meta device). Waits for the tensor's device. Threads: any.
std::optional<std::string> non_finite_part(const at::Tensor& tensor);

// NonFiniteError: "the output of layer '3' is not finite: 3 of 64 ...".
void check_finite(const at::Tensor& tensor, const std::string& what);

// The same for several tensors, each with a name of its own if they are.
void check_finite(const std::vector<at::Tensor>& tensors,
                  const std::string& what);

// Gradients that are looked at while the engine runs, whose threads may not
// wait for a device; that is left for check().
class NonFiniteGradients {
 public:
  // `of`: "parameter '3.weight'". Threads: one at a time.
  void look_at(const at::Tensor& grad, std::string of);
  // NonFiniteError if there was one that is not finite, which tells of all.
  // `where`: the end of its text.
  void check(const std::string& where = "") const;

 private:
  struct Seen {
    std::string of;
    int64_t elements = 0;
    at::Tensor finite, nan;  // how many of the elements are
  };
  std::vector<Seen> seen_;
};

}  // namespace gpipe
