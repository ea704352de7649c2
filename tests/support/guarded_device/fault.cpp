#include "guarded_device/fault.hpp"

#include "guarded_device/memory.hpp"

#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>

namespace unishard::test::guarded {
namespace {

thread_local sigjmp_buf* armed = nullptr;
thread_local std::array<char, 256> message;
struct sigaction former;

void on_fault(int signal, siginfo_t* info, void*) {
  const Memory& memory = Memory::instance();
  if (!memory.contains(info->si_addr)) {
    sigaction(signal, &former, nullptr);  // the access repeats
    return;
  }
  const Block* const block = memory.find(info->si_addr);
  const char* const state = block && block->freed ? "freed device memory" : "device memory";
  snprintf(message.data(), message.size(),
           "guarded: the host accesses %s: byte %ld of block #%d (%zu bytes, made by %s)", state,
           block ? static_cast<long>(static_cast<std::byte*>(info->si_addr) - block->base) : 0L,
           block ? block->id : 0, block ? block->bytes : 0, block ? block->born.c_str() : "nobody");
  if (armed) siglongjmp(*armed, 1);
  (void)!write(STDERR_FILENO, message.data(), strlen(message.data()));
  (void)!write(STDERR_FILENO, "\n", 1);
  ::signal(SIGSEGV, SIG_DFL);  // the access repeats, and the core dump has its stack
}

}  // namespace

void install_fault_handler() {
  Memory::instance();
  struct sigaction action {};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &former);
}

std::string host_access(const std::function<void()>& body) {
  sigjmp_buf here;
  if (sigsetjmp(here, 1) != 0) {
    armed = nullptr;
    return message.data();
  }
  armed = &here;
  body();
  armed = nullptr;
  return {};
}

}  // namespace unishard::test::guarded
