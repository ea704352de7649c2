#pragma once
// What a source that gives the tensors of another one in another form takes from it unchanged.
#include "unishard/converters/source.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters {

class ForwardingSource : public Source {
 public:
  explicit ForwardingSource(std::unique_ptr<Source> source) : source_(std::move(source)) {
    set_path(source_->path());
  }

  std::string format() const override { return source_->format(); }
  InputCheck compare_checksums(const TransferOptions& options,
                               const ReadPeers& peers) const override {
    return source_->verify_reads(options, peers);
  }
  std::string read_parts() const override { return source_->read_parts(); }
  bool ignore_checksums() override { return source_->ignore_checksums(); }
  std::uint64_t check(const TransferOptions& options) const override {
    return source_->check(options);
  }
  Losses own_losses() const override { return source_->losses(); }
  std::vector<std::string> own_remarks() const override { return source_->remarks(); }
  std::vector<std::string> remarks_on_states() const override {
    return source_->remarks_on_states();
  }
  std::vector<std::string> notes() const override { return source_->notes(); }
  Json cut_rules() const override { return source_->cut_rules(); }
  /// The arrangement of the files is one of other tensors.
  Json layout() const override { return {}; }

 protected:
  const Source& source() const { return *source_; }

 private:
  const std::unique_ptr<Source> source_;
};

}  // namespace unishard::converters
