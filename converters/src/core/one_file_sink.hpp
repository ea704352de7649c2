#pragma once
// A result of one file in which every tensor has its offset from the start, written by one process.
// The file is complete except for its payload when the sink is made; it appears by one rename.
#include "unishard/converters/sink.hpp"

#include "core/partial_output.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace unishard::converters {

/// Returns one fragment for each tensor that has elements.
std::vector<Fragment> whole_tensors(const Catalog& catalog);

class OneFileSink final : public Sink {
 public:
  /// Writes everything but the payload. Returns the offset of each tensor.
  using Begin = std::function<std::vector<std::uint64_t>(File& file)>;
  /// Lifetime: `storage` must outlive the sink.
  /// Throws: AlreadyExists for an existing file; what `begin` throws.
  OneFileSink(Storage& storage, const Path& output, Catalog catalog, const Begin& begin,
              std::vector<std::string> notes = {});

  const std::vector<Fragment>& fragments() const override { return fragments_; }
  void write(std::size_t fragment, ElementRange range, std::span<const std::byte> bytes) override;
  std::string seal() override;
  Path complete(std::span<const std::string> seals) override;
  void publish() override { partial_.publish(); }
  std::vector<std::string> notes() const override { return notes_; }

 private:
  PartialOutput partial_;  // before the file: it removes it after it is closed
  const Catalog catalog_;
  const std::vector<std::string> notes_;
  const std::vector<Fragment> fragments_;
  const std::unique_ptr<File> file_;
  const std::vector<std::uint64_t> offsets_;  ///< per tensor
};

}  // namespace unishard::converters
