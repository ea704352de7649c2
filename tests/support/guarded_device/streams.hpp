#pragma once
// The streams of the devices, and what orders their work. Kernels run in the caller, so none is
// ever late; an order that no event establishes is found by vector clocks, whatever the time.
#include "guarded_device/clock.hpp"
#include "guarded_device/late_work.hpp"
#include "guarded_device/memory.hpp"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace unishard::test::guarded {

inline constexpr auto kDeviceType = c10::DeviceType::PrivateUse1;
inline constexpr c10::DeviceIndex kDevices = 4;

/// Blocks that a piece of work uses, and whether it writes to them.
using Uses = std::vector<std::pair<Block*, bool>>;

// The device and the streams of this thread.
c10::DeviceIndex current_device();
c10::DeviceIndex exchange_device(c10::DeviceIndex device) noexcept;
/// Stream 0 of each device is current until another one is.
StreamKey current_stream(c10::DeviceIndex device) noexcept;
void set_current_stream(StreamKey stream) noexcept;

StreamKey new_stream(c10::DeviceIndex device);

/// Returns what a library gets for the stream; stream_of() is the reverse.
void* handle_of(StreamKey stream);
StreamKey stream_of(const void* handle);

/// Appends a piece of work to a stream, and waits until the caller may do it.
/// Throws: c10::Error that begins with "guarded: RACE" when it conflicts with work of another
/// stream that nothing orders before it.
void begin_work(StreamKey stream, const std::string& what, const Uses& uses);
/// Appends a piece of work that is done after the end_late() of the result. Does not wait.
/// Throws: as begin_work() does.
LateWork begin_late_work(StreamKey stream, const std::string& what, const Uses& uses);

/// Returns what a later wait must join: all work of the stream so far.
Clock record(StreamKey stream);
void make_wait(StreamKey stream, const Clock& event);
/// The host waits; work that it gives to any stream afterwards is ordered after the event.
void host_waited(const Clock& event);
/// Returns how often the host has waited for work of a device, copies to it left out.
std::uint64_t host_waits();

/// Returns how often each kind of work that uses a device's memory was given to a stream, by name.
std::map<std::string, std::uint64_t> work_counts();

/// Returns how many bytes the tensors of each kind of work have, by name: one that work reads and
/// writes is counted for each if its launch lists it twice. Results of LibTorch's operations that
/// are new tensors are not counted.
std::map<std::string, std::uint64_t> work_bytes();
void count_bytes(const std::string& what, std::uint64_t bytes);

/// Bytes that were copied between a device and the host.
struct CopiedBytes {
  std::uint64_t to_host = 0;           ///< by copies that the host has waited for
  std::uint64_t to_host_behind = 0;    ///< by others, which a real device makes to pinned memory
  std::uint64_t to_device = 0;         ///< by copies that the host has waited for
  std::uint64_t to_device_behind = 0;  ///< by others
};
/// Returns the sums of all devices.
CopiedBytes copied_bytes();
void count_copy(bool to_host, bool behind, std::uint64_t bytes);

/// Does the same as host_waited() for a copy to the device, which reads the host's memory at once.
void host_copied(const Clock& event);

/// Notes that a new block belongs to its home stream.
void begin_life(Block* block);
/// Notes a violation when another stream may still use the block. Returns its uses: the memory can
/// be given to another tensor when they are done.
Clock end_life(Block* block);
void record_use(Block* block, StreamKey stream);
/// Returns the violations of end_life(), which is called where nothing can be thrown, and forgets
/// them.
std::vector<std::string> take_violations();

}  // namespace unishard::test::guarded
