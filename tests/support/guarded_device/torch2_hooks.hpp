#pragma once

namespace unishard::test::guarded {

/// Registers what LibTorch 2 asks of a device beyond 1.13: its generators, the size of storages,
/// and how attention is computed. No effect on 1.13.
void register_torch2_hooks();

}  // namespace unishard::test::guarded
