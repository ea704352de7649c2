// Keys of "activation_checkpointing", and of "checkpoint", which is another thing.
#include "config/key_table.hpp"

namespace unishard::trainer::detail {
namespace {

using enum KeyType;
using enum KeyUse;

constexpr std::string_view kRecompute = "activation_checkpointing";
constexpr std::string_view kCheckpoint = "checkpoint";

constexpr ConfigKey kRecomputationKeys[] = {
    {.name = kRecompute,
     .type = Section,
     .text = "Recomputes each block in the backward pass, when it is given."},
    {.section = kRecompute,
     .name = "cpu_checkpointing",
     .type = Boolean,
     .initial = "false",
     .text = "Inputs of blocks wait in host memory."},
    {.section = kRecompute,
     .name = "contiguous_memory_optimization",
     .type = Boolean,
     .initial = "false",
     .text = "Inputs of blocks wait in one piece of memory; needs number_checkpoints."},
    {.section = kRecompute,
     .name = "number_checkpoints",
     .type = Integer,
     .text = "Blocks for which that piece has room.",
     .least = 0,
     .most = kCountMost},
    {.section = kRecompute,
     .name = "profile",
     .type = Boolean,
     .initial = "false",
     .text = "Measures how long recomputation takes."},
    {.section = kRecompute,
     .name = "partition_activations",
     .type = Boolean,
     .initial = "false",
     .use = Noted,
     .text = "has no effect: activations are split over ranks of a model-parallel group, and there "
             "is none"},
    {.section = kRecompute,
     .name = "synchronize_checkpoint_boundary",
     .type = Boolean,
     .initial = "false",
     .use = Noted,
     .text = "has no effect: streams wait for each other only where data need it"},
    {.name = kCheckpoint, .type = Section, .text = "How checkpoints are saved."},
    {.section = kCheckpoint,
     .name = "tag_validation",
     .type = Text,
     .initial = R"("Warn")",
     .use = Noted,
     .text = "has no effect: the ranks always agree on the tag"},
    {.section = kCheckpoint,
     .name = "load_universal",
     .type = Boolean,
     .initial = "false",
     .use = Noted,
     .text = "has no effect: --resume reads every format, universal checkpoints included"},
    {.section = kCheckpoint,
     .name = "use_node_local_storage",
     .type = Boolean,
     .initial = "false",
     .text =
         "Each node saves the shards of its own ranks, and the manifest, to a folder of its own; "
         "`unishard gather` makes one checkpoint of them."},
    {.section = kCheckpoint,
     .name = "parallel_write",
     .use = Noted,
     .text = "has no effect: every rank always writes its own part"},
    {.section = kCheckpoint,
     .name = "checkpoint_serialization",
     .type = Boolean,
     .initial = "true",
     .use = Noted,
     .text = "has no effect: checkpoints are written in UniShard's format"},
    {.section = kCheckpoint,
     .name = "writer",
     .use = Noted,
     .text = "has no effect: --async-save and --compress say how checkpoints are written"},
};

}  // namespace

std::span<const ConfigKey> recomputation_keys() { return kRecomputationKeys; }

}  // namespace unishard::trainer::detail
