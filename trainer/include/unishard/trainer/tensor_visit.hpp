#pragma once
// Finds the tensors in the arguments and results of a module's forward.
#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace unishard::trainer {

inline void visit_tensors(at::Tensor& tensor, std::vector<at::Tensor*>& found) {
  if (tensor.defined()) found.push_back(&tensor);
}
/// Any other value has no tensors.
template <class T>
void visit_tensors(T&, std::vector<at::Tensor*>&) {}
template <class T>
void visit_tensors(std::optional<T>& value, std::vector<at::Tensor*>& found);
template <class T>
void visit_tensors(std::vector<T>& values, std::vector<at::Tensor*>& found);
template <class T, std::size_t N>
void visit_tensors(std::array<T, N>& values, std::vector<at::Tensor*>& found);
template <class A, class B>
void visit_tensors(std::pair<A, B>& values, std::vector<at::Tensor*>& found);
template <class... T>
void visit_tensors(std::tuple<T...>& values, std::vector<at::Tensor*>& found);

template <class T>
void visit_tensors(std::optional<T>& value, std::vector<at::Tensor*>& found) {
  if (value) visit_tensors(*value, found);
}
template <class T>
void visit_tensors(std::vector<T>& values, std::vector<at::Tensor*>& found) {
  for (T& each : values) visit_tensors(each, found);
}
template <class T, std::size_t N>
void visit_tensors(std::array<T, N>& values, std::vector<at::Tensor*>& found) {
  for (T& each : values) visit_tensors(each, found);
}
template <class A, class B>
void visit_tensors(std::pair<A, B>& values, std::vector<at::Tensor*>& found) {
  visit_tensors(values.first, found);
  visit_tensors(values.second, found);
}
template <class... T>
void visit_tensors(std::tuple<T...>& values, std::vector<at::Tensor*>& found) {
  std::apply([&](T&... each) { (visit_tensors(each, found), ...); }, values);
}

/// Returns the defined tensors in `value`: a tensor, or optionals, vectors, arrays, pairs and
/// tuples of them, in order. Lifetime: the pointers are valid as long as `value` does not change.
template <class T>
std::vector<at::Tensor*> tensors_in(T& value) {
  std::vector<at::Tensor*> found;
  visit_tensors(value, found);
  return found;
}

/// Says whether a type is a tensor or is made of tensors as tensors_in() finds them.
template <class T>
inline constexpr bool kHasTensors = false;
template <>
inline constexpr bool kHasTensors<at::Tensor> = true;
template <class T>
inline constexpr bool kHasTensors<std::optional<T>> = kHasTensors<T>;
template <class T>
inline constexpr bool kHasTensors<std::vector<T>> = kHasTensors<T>;
template <class T, std::size_t N>
inline constexpr bool kHasTensors<std::array<T, N>> = kHasTensors<T>;
template <class A, class B>
inline constexpr bool kHasTensors<std::pair<A, B>> = kHasTensors<A> || kHasTensors<B>;
template <class... T>
inline constexpr bool kHasTensors<std::tuple<T...>> = (kHasTensors<T> || ...);

/// A copy of a value that has tensors; any other argument type stays the reference that it is.
template <class Reference>
using CopyOfTensors = std::conditional_t<kHasTensors<std::remove_cvref_t<Reference>>,
                                         std::remove_cvref_t<Reference>, Reference>;

}  // namespace unishard::trainer
