#pragma once
// Files of stage 3 that hold what another file holds: a copy of another rank's, or of another
// save's. Nothing else in such files tells their rank or save.
#include "unishard/format/storage.hpp"

#include "containers/tensor_view.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::deepspeed {

/// Compares the parts of parameters that ranks hold.
class ShardCopies {
 public:
  /// `views` are what the file of one rank holds, in the same order for all ranks.
  /// Throws: Corrupt when they are those of an earlier rank, and not constant.
  void add(const std::string& file, std::vector<torch::TensorView> views);
  /// Adds them, and returns the earlier file that has the same, where they are not constant.
  std::optional<std::string> find_or_add(const std::string& file,
                                         std::vector<torch::TensorView> views);

 private:
  struct Held {
    std::string file;
    std::vector<torch::TensorView> views;
  };
  std::multimap<std::vector<std::byte>, Held> by_sample_;
};

/// Returns the file of another save of the run that has the bytes of one of the two files, which
/// lie in the folder of a tag, where the other save has not both; an empty path when there is none.
Path find_in_other_save(Storage& storage, const Path& optimizer, const Path& model);

}  // namespace unishard::converters::deepspeed
