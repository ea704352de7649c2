#include "launch/host_addresses.hpp"

#include "unishard/format/error.hpp"

#include "support/descriptor.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

namespace unishard::tools {
namespace {

/// Returns the address as text; empty when it is of another family, or link-local.
std::string address_text(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.sa_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size());
  } else if (address.sa_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    if (!IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr))
      ::inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size());
  }
  return text.data();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) raise_errno("listing", "network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  std::vector<std::pair<std::string, std::string>> found;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    std::string text = address_text(*each->ifa_addr);
    if (!text.empty()) found.emplace_back(each->ifa_name, std::move(text));
  }
  std::ranges::stable_partition(
      found, [](const auto& interface) { return interface.second.find(':') == std::string::npos; });
  return found;
}

std::string ssh_address(std::string_view connection) {
  // "CLIENT PORT SERVER PORT"
  for (int i = 0; i < 2; ++i) {
    const std::size_t blank = connection.find(' ');
    if (blank == std::string_view::npos) return {};
    connection.remove_prefix(blank + 1);
  }
  const std::string address(connection.substr(0, connection.find(' ')));
  return address.starts_with("127.") || address == "::1" ? "" : address;
}

std::uint16_t free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (socket.get() < 0 || ::bind(socket.get(), generic, size) != 0 ||
      ::getsockname(socket.get(), generic, &size) != 0) {
    raise_errno("looking for", "a free port", errno);
  }
  return ntohs(address.sin_port);
}

}  // namespace unishard::tools
