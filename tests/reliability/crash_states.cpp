#include "crash_states.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace unishard::test {
namespace {

using Kind = Operation::Kind;

/// So many name calls are combined in every possible way.
constexpr std::size_t kAllSubsets = 7;

void index_inodes(const InodePtr& inode, std::map<std::uint64_t, InodePtr>& found) {
  found[inode->number] = inode;
  for (const auto& [name, child] : inode->entries) index_inodes(child, found);
}

std::vector<std::pair<std::uint64_t, std::string>> entries_of(const Operation& operation) {
  std::vector<std::pair<std::uint64_t, std::string>> out{{operation.inode, operation.name}};
  if (operation.kind == Kind::Rename || operation.kind == Kind::Exchange)
    out.emplace_back(operation.other, operation.other_name);
  return out;
}

/// A folder may hold names before its own is on the disk.
std::map<std::string, InodePtr>& entries_in(std::uint64_t folder,
                                            std::map<std::uint64_t, InodePtr>& inodes) {
  InodePtr& inode = inodes[folder];
  if (!inode) inode = std::make_shared<Inode>(Inode{.number = folder, .is_folder = true});
  return inode->entries;
}

void apply_name(const Operation& operation, std::map<std::uint64_t, InodePtr>& inodes) {
  auto& entries = entries_in(operation.inode, inodes);
  switch (operation.kind) {
    case Kind::Link: {
      InodePtr& inode = inodes[operation.other];
      if (!inode) {
        inode = std::make_shared<Inode>(
            Inode{.number = operation.other,
                  .is_folder = operation.is_folder,
                  .content = operation.is_folder ? nullptr : std::make_shared<Content>()});
      }
      entries[operation.name] = inode;
      break;
    }
    case Kind::Unlink:
      entries.erase(operation.name);
      break;
    case Kind::Rename: {
      const InodePtr moved = entries.at(operation.name);
      entries.erase(operation.name);
      entries_in(operation.other, inodes)[operation.other_name] = moved;
      break;
    }
    default:
      std::swap(entries.at(operation.name),
                entries_in(operation.other, inodes).at(operation.other_name));
  }
}

}  // namespace

CrashStates::CrashStates(const InodePtr& before, const std::vector<Operation>& journal,
                         CrashOptions options)
    : before_(before),
      journal_(journal),
      options_(options),
      pairs_(std::max<std::size_t>(4, options.states / (journal.size() + 1))),
      samples_(std::clamp<std::size_t>(pairs_ / 16, 1, 12)),
      random_(options.seed) {
  std::map<std::uint64_t, InodePtr> inodes;
  index_inodes(before_, inodes);
  for (const auto& [number, inode] : inodes)
    if (!inode->is_folder) files_[number].durable = inode->content;
}

void CrashStates::take(const Operation& operation) {
  if (operation.changes_names()) add_name(operation);
  if (operation.changes_data()) files_.at(operation.inode).pending.push_back(&operation);
  if (operation.kind == Kind::SyncFile) sync_file(operation.inode);
  if (operation.kind == Kind::SyncFolder) sync_folder(operation.inode);
  if (operation.kind == Kind::Returned) returned_ = true;
}

void CrashStates::add_name(const Operation& operation) {
  Name name{.operation = &operation};
  for (const auto& entry : entries_of(operation)) {
    const auto [last, is_first] = last_on_.try_emplace(entry, names_.size());
    if (!is_first) name.needs.insert(std::exchange(last->second, names_.size()));
  }
  names_.push_back(std::move(name));
  const bool is_file = operation.kind == Kind::Link && !operation.is_folder;
  if (is_file) files_.try_emplace(operation.other, File{.durable = std::make_shared<Content>()});
}

void CrashStates::sync_file(std::uint64_t inode) {
  File& file = files_.at(inode);
  auto content = std::make_shared<Content>(Content{file.durable->bytes});
  for (const Operation* operation : file.pending) apply_data(*operation, content->bytes);
  file = {.durable = std::move(content)};
  if (options_.durability != Durability::Ordered) return;
  for (std::size_t i = names_.size(); i > 0; --i) {
    const Operation& operation = *names_[i - 1].operation;
    if (operation.kind == Kind::Link && operation.other == inode) return make_prefix_durable(i);
  }
}

void CrashStates::sync_folder(std::uint64_t inode) {
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const Operation& operation = *names_[i].operation;
    const bool is_moved = operation.kind == Kind::Rename || operation.kind == Kind::Exchange;
    if (operation.inode != inode && !(is_moved && operation.other == inode)) continue;
    if (options_.durability == Durability::Ordered) {
      make_prefix_durable(i + 1);
    } else {
      names_[i].durable = true;
    }
  }
}

void CrashStates::make_prefix_durable(std::size_t end) {
  for (std::size_t i = 0; i < end; ++i) names_[i].durable = true;
}

CrashStates::NameSet CrashStates::durable_names() const {
  NameSet set;
  for (const Name& name : names_) set.push_back(name.durable);
  return set;
}

/// A call is there only when those are that made the names it works on.
void CrashStates::drop_unfounded(NameSet& set) const {
  for (std::size_t i = 0; i < set.size(); ++i) {
    set[i] = set[i] && std::ranges::all_of(names_[i].needs, [&](std::size_t k) { return set[k]; });
  }
}

// The last one has everything.
std::vector<CrashStates::NameSet> CrashStates::name_sets() {
  if (options_.durability == Durability::Weak) return weak_name_sets();
  std::vector<NameSet> sets{durable_names()};
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (names_[i].durable) continue;
    sets.push_back(sets.back());
    sets.back()[i] = true;
  }
  return sets;
}

std::vector<CrashStates::NameSet> CrashStates::weak_name_sets() {
  const NameSet durable = durable_names();
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (!durable[i]) open.push_back(i);
  std::set<NameSet> sets;
  const auto add = [&](const std::function<bool(std::size_t)>& is_there) {
    NameSet set = durable;
    for (std::size_t i = 0; i < open.size(); ++i) set[open[i]] = is_there(i);
    drop_unfounded(set);
    sets.insert(std::move(set));
  };
  if (open.size() <= kAllSubsets) {
    for (std::uint64_t mask = 0; mask < std::uint64_t{1} << open.size(); ++mask)
      add([&](std::size_t i) { return mask >> i & 1; });
  } else {
    for (std::size_t k = 0; k < open.size(); ++k) {
      add([&](std::size_t i) { return i <= k; });
      add([&](std::size_t i) { return i != k; });
    }
    for (std::size_t n = 0; n < 8 * samples_; ++n) add([&](std::size_t) { return below(2) == 1; });
  }
  sets.erase(NameSet(names_.size(), true));
  std::vector<NameSet> out(sets.begin(), sets.end());
  out.push_back(NameSet(names_.size(), true));
  return out;
}

std::string CrashStates::with_blocks_of(const std::string& old, const std::string& fresh,
                                        std::size_t block) {
  std::string bytes = old;
  bytes.resize(fresh.size());
  for (std::size_t at = 0; at < bytes.size(); at += block)
    if (below(2) == 1)
      std::memcpy(bytes.data() + at, fresh.data() + at, std::min(block, bytes.size() - at));
  return bytes;
}

/// The last write is there up to a block's end, or from there on.
void CrashStates::add_torn(const File& file, std::vector<Variant>& out) {
  const Operation& last = *file.pending.back();
  if (last.kind != Kind::Write || last.data->size() < 2) return;
  std::string bytes = file.durable->bytes;
  for (std::size_t i = 0; i + 1 < file.pending.size(); ++i) apply_data(*file.pending[i], bytes);
  for (const std::size_t block : {std::size_t{512}, std::size_t{4096}}) {
    const std::uint64_t end = last.offset + last.data->size();
    const std::uint64_t cut = (last.offset + 1 + below(last.data->size() - 1)) / block * block;
    if (cut <= last.offset || cut >= end) continue;
    const std::uint64_t head = cut - last.offset;
    const auto part = [&](std::uint64_t from, std::uint64_t count) {
      Operation operation{
          .kind = Kind::Write,
          .offset = last.offset + from,
          .data = std::make_shared<const std::string>(last.data->substr(from, count))};
      std::string torn = bytes;
      apply_data(operation, torn);
      out.push_back({std::make_shared<Content>(Content{std::move(torn)}),
                     fmt::format("{}, torn at byte {}", last.text, cut)});
    };
    part(0, head);
    part(head, end - cut);
  }
}

// The first one has everything, the second one nothing.
std::vector<CrashStates::Variant> CrashStates::variants(const File& file) {
  const auto some = [&](const std::function<bool(std::size_t)>& is_there) {
    std::string bytes = file.durable->bytes;
    for (std::size_t i = 0; i < file.pending.size(); ++i)
      if (is_there(i)) apply_data(*file.pending[i], bytes);
    return bytes;
  };
  std::vector<Variant> out;
  const auto add = [&](std::string bytes, std::string text) {
    out.push_back({std::make_shared<Content>(Content{std::move(bytes)}), std::move(text)});
  };
  const std::size_t count = file.pending.size();
  const std::string all = some([](std::size_t) { return true; });
  add(all, "");
  add(file.durable->bytes, "no write since its last sync");
  std::string sized = file.durable->bytes;
  sized.resize(all.size());
  add(sized, "the size and no byte");
  add_torn(file, out);
  for (std::size_t n = 0; n < samples_; ++n) {
    const std::size_t which = below(count);
    add(some([&](std::size_t i) { return i != which; }), "all but " + file.pending[which]->text);
    add(some([&](std::size_t i) { return i < which; }),
        "nothing from " + file.pending[which]->text);
    const std::uint64_t mask = random_();
    add(some([&](std::size_t i) { return mask >> i % 64 & 1; }), "some of its writes");
    add(with_blocks_of(file.durable->bytes, all, 4096), "some blocks of 4096 bytes");
    add(with_blocks_of(file.durable->bytes, all, 512), "some blocks of 512 bytes");
    add(all.substr(0, below(all.size() / 512 + 1) * 512), "its beginning");
  }
  return out;
}

// The first one has everything, the second one nothing.
std::vector<CrashStates::DataSet> CrashStates::data_sets(
    const std::map<std::uint64_t, std::vector<Variant>>& variants_of) {
  DataSet all, none;
  for (const auto& [inode, variants] : variants_of) {
    all[inode] = variants.data();
    none[inode] = &variants[1];
  }
  std::vector<DataSet> sets{all};
  if (variants_of.empty()) return sets;
  sets.push_back(none);
  for (const auto& [inode, variants] : variants_of) {
    for (std::size_t i = 1; i < variants.size(); ++i) {
      sets.push_back(all);
      sets.back()[inode] = &variants[i];
    }
  }
  for (std::size_t n = 0; variants_of.size() > 1 && n < 4 * samples_; ++n) {
    sets.push_back(all);
    for (const auto& [inode, variants] : variants_of)
      sets.back()[inode] = &variants[below(variants.size())];
  }
  return sets;
}

CrashState CrashStates::build(const NameSet& names, const DataSet& data) const {
  CrashState state{.root = copy_tree(before_), .returned = returned_, .text = {}};
  std::map<std::uint64_t, InodePtr> inodes;
  index_inodes(state.root, inodes);
  state.text =
      fmt::format("stopped after call {} ({})", at_, at_ == 0 ? "nothing" : journal_[at_ - 1].text);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i]) {
      apply_name(*names_[i].operation, inodes);
    } else {
      state.text += "; lost: " + names_[i].operation->text;
    }
  }
  for (const auto& [number, file] : files_) {
    const auto inode = inodes.find(number);
    if (inode == inodes.end()) continue;
    const auto chosen = data.find(number);
    inode->second->content = chosen == data.end() ? file.durable : chosen->second->content;
    if (chosen != data.end() && !chosen->second->text.empty())
      state.text += fmt::format("; of the file of `{}`: {}", file.pending.front()->text,
                                chosen->second->text);
  }
  return state;
}

bool CrashStates::states_now(const std::function<bool(const CrashState&)>& visit) {
  std::map<std::uint64_t, std::vector<Variant>> variants_of;
  for (const auto& [inode, file] : files_)
    if (!file.pending.empty()) variants_of[inode] = variants(file);
  const std::vector<NameSet> names = name_sets();
  const std::vector<DataSet> data = data_sets(variants_of);
  if (names.size() * data.size() <= pairs_) {
    for (const NameSet& name : names)
      for (const DataSet& item : data)
        if (!visit(build(name, item))) return false;
    return true;
  }
  // All that was called; then what is missing is names, data, or both.
  if (!visit(build(names.back(), data.front()))) return false;
  for (std::size_t n = 0; n < pairs_; ++n) {
    const NameSet& name = n % 3 == 1 ? names.back() : names[below(names.size())];
    const DataSet& item = n % 3 == 0 ? data.front() : data[below(data.size())];
    if (!visit(build(name, item))) return false;
  }
  return true;
}

void CrashStates::each(const std::function<bool(const CrashState&)>& visit) {
  for (;; ++at_) {
    if (!states_now(visit) || at_ == journal_.size()) return;
    take(journal_[at_]);
  }
}

}  // namespace unishard::test
