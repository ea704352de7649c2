#pragma once
// The client state as keys beside the model and the optimizer in a torch.save file.
#include "unishard/format/catalog.hpp"

#include "containers/inline_tensors.hpp"

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace unishard::converters::torch {

/// Not thread-safe.
class ClientValues {
 public:
  using Member = std::pair<std::string, Json>;
  /// Names the extra tensors in the values by their paths.
  explicit ClientValues(const Catalog& catalog);

  /// The keys and values that can be written. In values, {"$tensor": name} has names of tensors().
  const std::vector<Member>& members() const { return members_; }
  const Json* find(const std::string& key) const;
  /// The tensors in the values: catalog tensor and name.
  const std::vector<std::pair<std::size_t, std::string>>& tensors() const { return tensors_; }
  /// The small tensors whose bytes are in the values, by name.
  const std::map<std::string, InlineTensor>& constants() const { return constants_; }
  /// One line for each value that cannot be written, or is written in another form.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  using Names = std::vector<std::pair<std::string, std::string>>;  // fqn -> name
  using Constants = std::map<std::string, InlineTensor>;
  void add(const std::string& key, const Json& value);
  /// Moves what it names from `taken` to `constants`.
  bool rename_tensors(Json& value, const std::string& path, Names& names, Constants& taken,
                      Constants& constants) const;

  std::unordered_map<std::string, std::size_t> extras_;  // fqn -> catalog tensor
  std::unordered_map<std::string, std::string> named_;   // fqn -> name
  std::unordered_map<std::string, std::size_t> by_key_;
  std::vector<Member> members_;
  std::vector<std::pair<std::size_t, std::string>> tensors_;
  Constants constants_;
  std::vector<std::string> notes_;
};

}  // namespace unishard::converters::torch
