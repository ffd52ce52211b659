// Data of gpipe on a tensor, which make LibTorch call gpipe before an operator
// runs on it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <utility>

namespace gpipe::internal {

// The base of a tag of the class `Tag`. A tensor with a tag has `kTensorKey` in
// its own key set, so that the kernels of this key run on every thread; other
// tensors go through LibTorch unchanged.
//
// The tag is the tensor's BackendMeta, which LibTorch passes on to shallow
// copies: detach(), data(), and tensors saved by autograd. A view has the keys
// of its base, but no tag.
template <typename Tag, c10::DispatchKey kTensorKey>
class TensorTag : public c10::BackendMeta {
 public:
  // Returns the tag of `tensor`, or null if it has none.
  static const Tag* of(const at::Tensor& tensor) {
    c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    if (!impl->key_set().has(kTensorKey)) return nullptr;
    return dynamic_cast<const Tag*>(impl->get_backend_meta());
  }

  // Returns whether set() can tag `tensor`: whether there is no BackendMeta of
  // its backend or of other code in it.
  static bool can_be_on(const at::Tensor& tensor) {
    c10::BackendMeta* const other =
        tensor.unsafeGetTensorImpl()->get_backend_meta();
    return !other || dynamic_cast<Tag*>(other);
  }

  // Tags `tensor`. Returns false, and changes nothing, if it cannot.
  static bool set(const at::Tensor& tensor, c10::intrusive_ptr<Tag> tag) {
    if (!can_be_on(tensor)) return false;
    c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    impl->set_backend_meta(std::move(tag));
    auto& keys = Keys::of(*impl);
    keys = keys.add(kTensorKey);
    return true;
  }

  // Removes the tag of `tensor`, if it has one.
  static void remove(const at::Tensor& tensor) {
    c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    auto& keys = Keys::of(*impl);
    keys = keys.remove(kTensorKey);
    if (dynamic_cast<Tag*>(impl->get_backend_meta())) {
      impl->set_backend_meta(nullptr);
    }
  }

 private:
  // TensorImpl has no function that adds a custom key to an existing tensor.
  // Its subclasses may access the key set.
  struct Keys : c10::TensorImpl {
    static c10::DispatchKeySet& of(c10::TensorImpl& tensor) {
      return tensor.*(&Keys::key_set_);
    }
  };
};

}  // namespace gpipe::internal
