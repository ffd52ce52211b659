// Finds devices by name, and moves nested data to a device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gpipe {

// Returns the device called "cpu", "cuda", "cuda:1", "meta", ..., or `device`
// itself. Throws c10::ValueError if LibTorch does not know the type (the text
// lists the nearest types), if the index is not a number, or if the index is
// beyond this process's devices of that type.
c10::Device get_device(const std::string& name);
c10::Device get_device(c10::Device device);

namespace placement {

// Returns `device` as Tensor::device() reports it: "cuda" becomes the thread's
// current CUDA device, and "cpu:0" becomes "cpu". Throws c10::ValueError if
// this process has no such device.
c10::Device existing_device(c10::Device device);

// Returns the three names nearest to `name` as text for an error: "'a', 'b' and
// 'c'". The nearest comes first; among equally near ones, the earlier. Near
// means a small Levenshtein distance (letters added, removed or replaced),
// ignoring case.
std::string nearest_text(const std::string& name,
                         const std::vector<std::string>& names);

// ---- Moves nested data to a device.

// True for types with a `to(device)` member: at::Tensor, PackedSequence, ...
template <typename T, typename = void>
struct HasTo : std::false_type {};
template <typename T>
struct HasTo<
    T,
    std::enable_if_t<std::is_convertible_v<
        decltype(std::declval<const T&>().to(std::declval<c10::Device>())), T>>>
    : std::true_type {};

// Moves a value that has `to(device)`; returns any other value unchanged.
template <typename T>
struct Mover {
  static T move(T data, c10::Device device) {
    if constexpr (HasTo<T>::value) {
      return data.to(device);
    } else {
      return data;
    }
  }
};

template <>
struct Mover<at::Tensor> {
  static at::Tensor move(at::Tensor data, c10::Device device) {
    // An undefined tensor is on no device.
    if (!data.defined() || data.device() == device) return data;
    return data.to(device);
  }
};

template <typename T>
struct Mover<std::optional<T>> {
  static std::optional<T> move(std::optional<T> data, c10::Device device) {
    if (data) data = Mover<T>::move(std::move(*data), device);
    return data;
  }
};

// Moves each element of a range.
template <typename Range>
struct RangeMover {
  static Range move(Range data, c10::Device device) {
    using T = typename Range::value_type;
    for (T& each : data) each = Mover<T>::move(std::move(each), device);
    return data;
  }
};
template <typename... T>
struct Mover<std::vector<T...>> : RangeMover<std::vector<T...>> {};
template <typename... A>
struct Mover<std::vector<bool, A...>> {
  static std::vector<bool, A...> move(std::vector<bool, A...> data,
                                      c10::Device) {
    return data;
  }
};
template <typename T, std::size_t N>
struct Mover<std::array<T, N>> : RangeMover<std::array<T, N>> {};

// Moves each value of a map and keeps its key.
template <typename Map>
struct MapMover {
  static Map move(Map data, c10::Device device) {
    using T = typename Map::mapped_type;
    for (auto& each : data) {
      each.second = Mover<T>::move(std::move(each.second), device);
    }
    return data;
  }
};
template <typename... T>
struct Mover<std::map<T...>> : MapMover<std::map<T...>> {};
template <typename... T>
struct Mover<std::unordered_map<T...>> : MapMover<std::unordered_map<T...>> {};

template <typename A, typename B>
struct Mover<std::pair<A, B>> {
  static std::pair<A, B> move(std::pair<A, B> data, c10::Device device) {
    return {Mover<A>::move(std::move(data.first), device),
            Mover<B>::move(std::move(data.second), device)};
  }
};

template <typename... T>
struct Mover<std::tuple<T...>> {
  static std::tuple<T...> move(std::tuple<T...> data, c10::Device device) {
    return std::apply(
        [&](T&... each) {
          return std::tuple<T...>{Mover<T>::move(std::move(each), device)...};
        },
        data);
  }
};

}  // namespace placement

// Returns `data` with its tensors on `device`. `data` may be a tensor, a type
// with `to(device)` (such as PackedSequence), or a vector, array, pair, tuple,
// optional or map of these, nested to any depth. Undefined tensors and values
// that are not tensors are returned unchanged. A tensor that is already on
// `device` is returned as the same tensor. Autograd differentiates through the
// move.
template <typename Data>
std::decay_t<Data> move_to_device(Data&& data, c10::Device device) {
  return placement::Mover<std::decay_t<Data>>::move(std::forward<Data>(data),
                                                    device);
}

}  // namespace gpipe
