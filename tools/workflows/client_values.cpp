#include "workflows/client_values.hpp"

#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace unishard::tools {
namespace {

using converters::client_tensor_in;
using converters::ClientTensor;

/// Upper bound on the lines about values.
constexpr std::size_t kListedValues = 32;

/// Arrays and scalars of numpy are kept as the calls that make them.
bool is_numpy(const Json& value) {
  if (!value.is_object() || !value.contains("name") || !value["name"].is_string()) return false;
  const auto& name = value["name"].get_ref<const std::string&>();
  return name.starts_with("numpy.") && name.find("multiarray.") != std::string::npos;
}

bool is_plain_dict(const Json* value) {
  return value == nullptr || (value->is_object() && !value->contains("$type"));
}

std::string value_text(const Json& value) {
  constexpr std::size_t kMax = 60;
  if (value.is_string() && value.get_ref<const std::string&>().size() < kMax)
    return quote(value.get_ref<const std::string&>());
  const std::string text = value.is_primitive() ? value.dump() : std::string();
  return text.empty() || text.size() > kMax ? "a value" : text;
}

std::string tensor_text(const ClientTensor& tensor) {
  return fmt::format("{} [{}]", name_of(tensor.dtype), fmt::join(tensor.shape, ", "));
}

class ClientValuesWalk {
 public:
  explicit ClientValuesWalk(const std::optional<double>& tolerance) : tolerance_(tolerance) {}

  /// Null stands for nothing under the path.
  void compare(const std::string& path, const Json* a, const Json* b) {
    const Json* const one = a != nullptr ? a : b;
    const bool are_tensors = is_tensor(a) || is_tensor(b);
    if (are_tensors) return compare_tensors(path, a, b);
    if (is_plain_dict(a) && is_plain_dict(b)) return compare_members(path, a, b);
    const bool are_lists = a != nullptr && b != nullptr && a->is_array() && b->is_array();
    if (are_lists && a->size() == b->size()) return compare_items(path, *a, *b);
    if (a != nullptr && b != nullptr) {
      if (*a == *b) return count_tensors(*a);
      if (holds_tensors(*a) || holds_tensors(*b)) return add(path, DiffKind::Scalar);
      return inform(fmt::format("{}: {} and {}", path, value_text(*a), value_text(*b)));
    }
    if (holds_tensors(*one)) return add(path, only_in(a));
    inform(fmt::format("{}: only in {}", path, a != nullptr ? "A" : "B"));
  }

  ClientComparison take() {
    if (more_ > 0)
      out_.information.push_back(fmt::format("{} more values of the client states differ", more_));
    return std::move(out_);
  }

 private:
  static bool is_tensor(const Json* value) {
    return value != nullptr && (is_numpy(*value) || client_tensor_in(*value));
  }
  static bool holds_tensors(const Json& value) {
    if (is_tensor(&value)) return true;
    return value.is_structured() && std::ranges::any_of(value, holds_tensors);
  }
  static DiffKind only_in(const Json* a) {
    return a != nullptr ? DiffKind::OnlyInA : DiffKind::OnlyInB;
  }
  static const Json* member(const Json* dict, const std::string& key) {
    if (dict == nullptr || !dict->contains(key)) return nullptr;
    return &dict->at(key);
  }

  void count_tensors(const Json& value) {
    if (is_tensor(&value)) {
      ++out_.tensors;
    } else if (value.is_structured()) {
      for (const Json& child : value) count_tensors(child);
    }
  }

  void compare_members(const std::string& path, const Json* a, const Json* b) {
    const bool is_top = path == "client_state";
    std::vector<std::string> keys;
    const auto add_keys = [&](const Json* side, const Json* known) {
      if (side == nullptr) return;
      for (const auto& [key, value] : side->items()) {
        const bool is_scalars = is_top && key == converters::kOptimizerScalars;
        if (!is_scalars && (known == nullptr || !known->contains(key))) keys.push_back(key);
      }
    };
    add_keys(a, nullptr);
    add_keys(b, a);
    for (const std::string& key : keys)
      compare(fmt::format("{}.{}", path, key), member(a, key), member(b, key));
  }

  void compare_items(const std::string& path, const Json& a, const Json& b) {
    for (std::size_t i = 0; i < a.size(); ++i) compare(fmt::format("{}.{}", path, i), &a[i], &b[i]);
  }

  void compare_tensors(const std::string& path, const Json* a, const Json* b) {
    if (a == nullptr || b == nullptr) return add(path, only_in(a));
    ++out_.tensors;
    if (*a == *b) return;
    const auto in_a = client_tensor_in(*a), in_b = client_tensor_in(*b);
    if (!in_a || !in_b) return add(path, DiffKind::Scalar);
    if (in_a->dtype != in_b->dtype || in_a->shape != in_b->shape) {
      out_.differences.push_back({.tensor = path,
                                  .kind = DiffKind::Scalar,
                                  .a = tensor_text(*in_a),
                                  .b = tensor_text(*in_b)});
      return;
    }
    const ElementDiff found =
        compare_elements(in_a->dtype, in_a->bytes, in_b->bytes, 0, tolerance_);
    if (found.differing == 0) return;
    auto& list = found.beyond > 0 ? out_.differences : out_.within_tolerance;
    list.push_back({.tensor = path, .kind = DiffKind::Values, .elements = found});
  }

  void add(const std::string& path, DiffKind kind) {
    TensorDiff found{.tensor = path, .kind = kind};
    if (kind == DiffKind::Scalar) {
      found.a = "an array or object";
      found.b = "another one";
    }
    out_.differences.push_back(std::move(found));
  }
  void inform(std::string line) {
    if (out_.information.size() < kListedValues) {
      out_.information.push_back(std::move(line));
    } else {
      ++more_;
    }
  }

  const std::optional<double>& tolerance_;
  ClientComparison out_;
  std::size_t more_ = 0;
};

void find_client_tensors(const Json& value, const std::string& path, std::size_t& count,
                         std::string& first) {
  if (client_tensor_in(value)) {
    if (count++ == 0) first = path;
  } else if (value.is_object()) {
    for (const auto& [key, child] : value.items())
      find_client_tensors(child, fmt::format("{}.{}", path, key), count, first);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i)
      find_client_tensors(value[i], fmt::format("{}.{}", path, i), count, first);
  }
}

}  // namespace

ClientComparison compare_client_values(const Json& a, const Json& b,
                                       const std::optional<double>& tolerance) {
  ClientValuesWalk walk(tolerance);
  walk.compare("client_state", a.is_null() ? nullptr : &a, b.is_null() ? nullptr : &b);
  return walk.take();
}

std::optional<std::string> note_client_tensors(const Json& client_state) {
  std::size_t count = 0;
  std::string first;
  find_client_tensors(client_state, "client_state", count, first);
  if (count == 0) return std::nullopt;
  return fmt::format("{} tensors of neither model nor optimizer ({} first)", count, quote(first));
}

}  // namespace unishard::tools
