#pragma once

namespace unishard::test::guarded {

/// Tells LibTorch how threads choose devices and streams, and what events are.
void register_device_guard();

}  // namespace unishard::test::guarded
