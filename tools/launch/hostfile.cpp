#include "launch/hostfile.hpp"

#include "unishard/format/error.hpp"

#include "support/text_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

namespace unishard::tools {
namespace {

constexpr std::string_view kBlanks = " \t\r\v\f";

/// Removes the text up to the next separator from `rest`, and returns it.
std::string_view take(std::string_view& rest, std::string_view separators) {
  const std::size_t end = std::min(rest.find_first_of(separators), rest.size());
  const std::string_view found = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return found;
}

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || at != text.data() + text.size()) return std::nullopt;
  return value;
}

/// ssh takes a name that begins with a hyphen for an option.
bool is_safe_name(std::string_view name) {
  const auto is_safe = [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           std::string_view("._-:%@[]").find(static_cast<char>(c)) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= 255 && name.front() != '-' &&
         name.find("@-") == std::string_view::npos && std::ranges::all_of(name, is_safe);
}

bool is_ignored(std::string_view words) {
  words = trimmed(words, kBlanks);
  if (words.empty() || words.front() == '#') return true;
  const std::string_view word = take(words, kBlanks);
  for (const std::string_view name : {"max_slots=", "max-slots="}) {
    if (word.starts_with(name) && number(word.substr(name.size()))) return is_ignored(words);
  }
  return false;
}

HostSlots parse_line(std::string_view line, const std::string& where) {
  const std::string whole = quote(line);
  const std::string_view name = take(line, kBlanks);
  line = trimmed(line, kBlanks);
  const std::string_view word = take(line, kBlanks);
  const auto slots =
      word.starts_with("slots=") ? number(word.substr(6)) : std::optional<std::uint32_t>();
  if (!slots || !is_ignored(line))
    raise(ErrorCode::InvalidArgument, fmt::format("{}: {} is not `NAME slots=N`", where, whole));
  if (!is_safe_name(name)) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: {} is not the name of a host", where, quote(name)));
  }
  if (*slots > kSlotsMax) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: {} slots are more than {}", where, *slots, kSlotsMax));
  }
  HostSlots host{.name = std::string(name), .slots = std::vector<std::uint32_t>(*slots)};
  std::iota(host.slots.begin(), host.slots.end(), 0u);
  return host;
}

auto find_host(auto& hosts, std::string_view name) {
  return std::ranges::find(hosts, name, &HostSlots::name);
}

/// Adds the hosts and slots that one part of a filter names; the part alone means all slots.
void add_part(std::vector<HostSlots>& named, std::string_view part, std::string_view option) {
  std::string_view rest = part;
  const std::string_view name = take(rest, ":");
  auto host = find_host(named, name);
  if (host == named.end())
    host = named.insert(named.end(), {.name = std::string(name), .slots = {}});
  if (part.find(':') == std::string_view::npos) return;
  do {
    const std::string_view text = take(rest, ",");
    const auto slot = number(text);
    if (!slot || part.back() == ',') {
      raise(ErrorCode::InvalidArgument,
            fmt::format("{}: {} is not the number of a slot", option, quote(text)),
            "the grammar is HOST[:SLOT[,SLOT]...][@HOST...], for example worker-0@worker-1:0,2");
    }
    host->slots.push_back(*slot);
  } while (!rest.empty());
}

/// Parses a filter and checks it against `hosts`. A host without slots stands for all of them.
std::vector<HostSlots> parse_filter(std::string_view text, const std::vector<HostSlots>& hosts,
                                    std::string_view option) {
  std::vector<HostSlots> named;
  if (text.ends_with('@'))
    raise(ErrorCode::InvalidArgument, fmt::format("{}: no host follows the last @", option));
  while (!text.empty()) add_part(named, take(text, "@"), option);
  for (HostSlots& host : named) {
    const auto known = find_host(hosts, host.name);
    if (known == hosts.end()) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("{}: the hostfile has no host {}", option, quote(host.name)));
    }
    for (const std::uint32_t slot : host.slots) {
      if (std::ranges::find(known->slots, slot) == known->slots.end()) {
        raise(ErrorCode::InvalidArgument,
              fmt::format("{}: {} has no slot {}", option, quote(host.name), slot));
      }
    }
    if (host.slots.empty()) host.slots = known->slots;
  }
  return named;
}

void apply_names(std::vector<HostSlots>& hosts, const HostFilter& filter) {
  const bool includes = !filter.include.empty();
  const std::vector<HostSlots> named = parse_filter(includes ? filter.include : filter.exclude,
                                                    hosts, includes ? "--include" : "--exclude");
  for (HostSlots& host : hosts) {
    const auto found = find_host(named, host.name);
    std::erase_if(host.slots, [&](std::uint32_t slot) {
      const bool is_named =
          found != named.end() && std::ranges::find(found->slots, slot) != found->slots.end();
      return is_named != includes;
    });
  }
}

void apply_counts(std::vector<HostSlots>& hosts, const HostFilter& filter) {
  if (filter.nodes > hosts.size()) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--num_nodes is {}, and there are {} hosts", filter.nodes, hosts.size()));
  }
  if (filter.nodes != 0) hosts.resize(filter.nodes);
  if (filter.devices == 0) return;
  for (HostSlots& host : hosts) {
    host.slots.resize(filter.devices);
    std::iota(host.slots.begin(), host.slots.end(), 0u);
  }
}

}  // namespace

std::vector<HostSlots> parse_hostfile(std::string_view text, std::string_view path) {
  std::vector<HostSlots> hosts;
  for (std::size_t line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = trimmed(take(text, "\n"), kBlanks);
    if (line.empty() || line.front() == '#') continue;
    const std::string where = fmt::format("{}, line {}", path, line_number);
    HostSlots host = parse_line(line, where);
    if (find_host(hosts, host.name) != hosts.end()) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("{}: {} is there twice", where, quote(host.name)));
    }
    if (hosts.size() == kHostsMax)
      raise(ErrorCode::InvalidArgument, fmt::format("{}: more than {} hosts", where, kHostsMax));
    hosts.push_back(std::move(host));
  }
  if (hosts.empty())
    raise(ErrorCode::InvalidArgument, fmt::format("{}: there is no host in it", path));
  return hosts;
}

std::vector<HostSlots> select_hosts(const std::vector<HostSlots>& hosts, const HostFilter& filter) {
  const bool has_names = !filter.include.empty() || !filter.exclude.empty();
  if (!filter.include.empty() && !filter.exclude.empty())
    raise(ErrorCode::InvalidArgument, "--include and --exclude exclude each other");
  if (has_names && (filter.nodes != 0 || filter.devices != 0)) {
    raise(ErrorCode::InvalidArgument,
          "--num_nodes and --num_gpus cannot be used together with --include or --exclude");
  }
  std::vector<HostSlots> chosen = hosts;
  if (has_names) apply_names(chosen, filter);
  apply_counts(chosen, filter);
  std::erase_if(chosen, [](const HostSlots& host) { return host.slots.empty(); });
  if (chosen.empty()) raise(ErrorCode::InvalidArgument, "no host with a slot is left");
  return chosen;
}

}  // namespace unishard::tools
