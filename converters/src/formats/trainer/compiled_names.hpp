#pragma once
// Names in the state dict of a model of which torch.compile has wrapped modules: behind the name of
// each, "" for the model as a whole, follows "_orig_mod". A catalog has the names without these.
// Thread safety: pure functions, and a class without state that changes.
#include "unishard/format/catalog.hpp"

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::converters::trainer {

/// The modules that torch.compile has wrapped.
class CompiledModules {
 public:
  /// Finds them in names: fqn, and name in the file. There are none if that does not explain all
  /// the names.
  explicit CompiledModules(const std::vector<std::pair<std::string, std::string>>& names);
  /// Takes those of which a catalog records that they had other names in the files of `library`.
  CompiledModules(const Catalog& catalog, std::string_view library);

  bool empty() const { return modules_.empty(); }
  /// Returns the name in the file.
  std::string name_of(const std::string& fqn) const;
  /// Records in Catalog::producer that they had other names in the files of `library`.
  void record(std::string_view library, Json& producer) const;

 private:
  std::set<std::string> modules_;
};

}  // namespace unishard::converters::trainer
