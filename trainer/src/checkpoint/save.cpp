// A save, step by step (commit.cpp of unishard::format holds the protocol and its reasons). Every
// phase ends in an agreement, so that no rank goes on, or leaves by an exception, without the
// others.
#include "unishard/format/error.hpp"

#include "checkpoint/agree.hpp"
#include "checkpoint/bridge.hpp"
#include "checkpoint/describe.hpp"

#include <chrono>

namespace unishard::trainer::detail {
namespace {

class Save {
 public:
  Save(const TrainingState& state, Communicator& communicator, const EngineOptions& options,
       const SaveRequest& request)
      : local_(state),
        communicator_(communicator),
        options_(options),
        storage_(*options.storage),
        request_(request),
        tag_(request.tag.empty() ? "global_step" + std::to_string(state.step) : request.tag),
        catalog_(describe(state, local_, communicator)) {
    catalog_.client_state = request.client_state;
    commit_ = {.move_latest = request.move_latest,
               .keep_last = request.keep_last,
               .on_step = options.on_save_step};
  }

  SaveReport run() {
    const auto started = std::chrono::steady_clock::now();
    begin();
    try {
      write_shard();
      commit();
    } catch (...) {
      if (is_first()) abandon_save(storage_, request_.folder, tag_, save_id_);
      throw;
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
    return {.tag = tag_,
            .folder = (request_.folder / tag_).string(),
            .identity = identity_,
            .bytes = catalog_.stored_bytes(),
            .seconds = elapsed.count()};
  }

 private:
  bool is_first() const { return communicator_.rank() == 0; }

  void begin() {
    std::string id;
    agree(communicator_, "starting the save", [&] {
      if (!is_first()) return;
      id = new_save_id();
      begin_save(storage_, request_.folder, tag_, id, commit_);
    });
    save_id_ = gather_text(communicator_, id).front();
  }

  void write_shard() {
    agree(communicator_, "writing a shard", [&] {
      const std::uint32_t rank = communicator_.rank();
      const Path path = staging_folder(request_.folder, tag_, save_id_) /
                        shard_file_name(rank, catalog_.world_size);
      report(CommitStep::WriteShard);
      ShardWriter writer(storage_, path, save_id_, catalog_, rank, plan_shard(catalog_, rank));
      for (std::size_t f = 0; f < writer.fragments().size(); ++f) write_fragment(writer, f);
      report(CommitStep::SyncShard);
      entry_ = to_json(writer.finish()).dump();
    });
  }

  void write_fragment(ShardWriter& writer, std::size_t index) {
    const Fragment& fragment = writer.fragments()[index];
    const LocalTensor tensor = local_.local(fragment.tensor);
    if (!tensor.held.contains(fragment.range)) {
      raise(ErrorCode::Internal, "save: this rank does not hold what it is to write of " +
                                     catalog_.tensors[fragment.tensor].label());
    }
    const std::uint64_t element = size_of(catalog_.tensors[fragment.tensor].dtype);
    writer.write(index, fragment.range,
                 tensor.bytes.subspan((fragment.range.begin - tensor.held.begin) * element,
                                      fragment.range.size() * element));
  }

  void commit() {
    const std::vector<std::string> entries = gather_text(communicator_, entry_);
    agree(communicator_, "committing the save", [&] {
      if (!is_first()) return;
      std::vector<ShardEntry> shards;
      for (const std::string& entry : entries) {
        shards.push_back(shard_entry_from_json(parse_json(entry, "shard entry"), "shard entry"));
      }
      const Manifest manifest = commit_save(storage_, request_.folder, tag_, save_id_, catalog_,
                                            std::move(shards), commit_);
      identity_ = unishard::identity(manifest.catalog).value_or("");
    });
  }

  void report(CommitStep step) {
    if (commit_.on_step) commit_.on_step(step);
  }

  LocalState local_;
  Communicator& communicator_;
  const EngineOptions& options_;
  Storage& storage_;
  const SaveRequest& request_;
  std::string tag_;
  Catalog catalog_;
  CommitOptions commit_;
  std::string save_id_, entry_, identity_;
};

}  // namespace

SaveReport save(const TrainingState& state, Communicator& communicator,
                const EngineOptions& options, const SaveRequest& request) {
  return Save(state, communicator, options, request).run();
}

}  // namespace unishard::trainer::detail
