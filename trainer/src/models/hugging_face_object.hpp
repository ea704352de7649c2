#pragma once
// Reads the values of an object in a config.json of transformers. Every error begins with the file
// and names the key, its value and what is supported.
// Thread safety: an immutable value.
#include "unishard/format/json.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace unishard::trainer::detail {

/// The largest number of layers, heads, tokens and the like that a model may have.
inline constexpr std::int64_t kModelSizeMax = std::int64_t{1} << 24;

class HuggingFaceObject {
 public:
  /// Lifetime: `json` must outlive this object.
  /// Throws: InvalidArgument unless `json` is an object.
  HuggingFaceObject(const Json& json, std::string_view where);

  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }
  /// Returns null for a key that is missing or null.
  const Json* find(std::string_view key) const;
  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const;

  std::int64_t size(std::string_view key) const;
  std::int64_t size_or(std::string_view key, std::int64_t missing) const;
  bool flag_or(std::string_view key, bool missing) const;
  /// Returns a finite number that is greater than zero.
  double positive(std::string_view key) const;
  double positive_or(std::string_view key, double missing) const;
  /// Returns a number from 0 up to 1.
  double probability_or(std::string_view key, double missing) const;
  /// Refuses a value other than `only`; a missing key is accepted.
  void require(std::string_view key, const Json& only) const;
  /// Refuses other kinds of models, and heads that are none of a language model.
  void require_kind(std::string_view model_type, std::string_view causal,
                    std::string_view base) const;
  /// Returns what `tie_word_embeddings` says.
  bool tied_head_or(bool missing) const { return flag_or("tie_word_embeddings", missing); }

 private:
  const Json& json_;
  std::string where_;
};

}  // namespace unishard::trainer::detail
