// Keys of monitors, profilers and logs. None of them changes a number of the training.
#include "config/key_table.hpp"

namespace unishard::trainer::detail {
namespace {

using enum KeyType;
using enum KeyUse;

constexpr std::string_view kNoMonitor =
    "nothing is sent to it; --losses FILE writes loss, norm, rate and tokens/s of each step";
constexpr std::string_view kFlops = "flops_profiler";
constexpr std::string_view kOutputPath = "Folder in which the folder of the job is.";
constexpr std::string_view kJobName = "Name of the folder.";
constexpr std::string_view kPartOfMonitor = "has no effect: nothing is sent to this monitor";

constexpr ConfigKey kObservationKeys[] = {
    {.name = "wall_clock_breakdown",
     .type = Boolean,
     .initial = "false",
     .text = "Rank 0 of train_gpt prints the times of forward, backward and update with each step "
             "that it prints, as the host sees them."},
    {.name = "memory_breakdown",
     .type = Boolean,
     .initial = "false",
     .text = "train_gpt prints what each rank holds with each step that it prints."},
    {.name = "dump_state",
     .type = Boolean,
     .initial = "false",
     .text = "train_gpt prints all values of the configuration before the first step."},
    {.name = "log_level",
     .type = Text,
     .use = Noted,
     .text = "has no effect: messages have no levels"},
    {.name = "tensorboard", .type = Section, .text = "Event files for TensorBoard."},
    {.section = "tensorboard",
     .name = "enabled",
     .type = Boolean,
     .initial = "false",
     .text = "Rank 0 of train_gpt writes loss, rate and loss scale of each step."},
    {.section = "tensorboard",
     .name = "output_path",
     .type = Text,
     .initial = R"("")",
     .text = kOutputPath},
    {.section = "tensorboard",
     .name = "job_name",
     .type = Text,
     .initial = R"("DeepSpeedJobName")",
     .text = kJobName},
    {.name = "csv_monitor", .type = Section, .text = "Files of comma-separated values."},
    {.section = "csv_monitor",
     .name = "enabled",
     .type = Boolean,
     .initial = "false",
     .text = "Rank 0 of train_gpt writes loss, rate and loss scale of each step, a file for each."},
    {.section = "csv_monitor",
     .name = "output_path",
     .type = Text,
     .initial = R"("")",
     .text = kOutputPath},
    {.section = "csv_monitor",
     .name = "job_name",
     .type = Text,
     .initial = R"("DeepSpeedJobName")",
     .text = kJobName},
    {.name = "wandb", .use = Noted, .text = kNoMonitor},
    {.name = "comet", .use = Noted, .text = kNoMonitor},
    {.name = "monitor_config", .use = Noted, .text = kPartOfMonitor},
    {.name = "comms_config",
     .use = Noted,
     .text = "nothing is logged; --trace FILE has the collectives"},
    {.name = "comms_logger",
     .use = Noted,
     .text = "nothing is logged; --trace FILE has the collectives"},
    {.name = "flops_profiler",
     .type = Section,
     .text = "Work of each unit and of the step in matrix products, tokens/s and the share of a "
             "measured peak (MFU), printed by train_gpt."},
    {.section = kFlops, .name = "enabled", .type = Boolean, .initial = "false", .text = "On."},
    {.section = kFlops,
     .name = "profile_step",
     .type = Integer,
     .initial = "1",
     .text = "The step that is profiled.",
     .least = 1,
     .most = kCountMost},
    {.section = kFlops,
     .name = "recompute_fwd_factor",
     .type = Number,
     .initial = "0.0",
     .text = "Share of the forward pass that recomputation does again, 1 with "
             "activation_checkpointing.",
     .least = 0,
     .most = 1},
    {.section = kFlops,
     .name = "detailed",
     .type = Boolean,
     .initial = "true",
     .text = "A line for each unit."},
    {.section = kFlops,
     .name = "output_file",
     .type = Text,
     .text = "File for the profile in place of standard output."},
    {.section = kFlops,
     .name = "module_depth",
     .type = Integer,
     .initial = "-1",
     .use = Noted,
     .text = "has no effect: the profile has a line for each unit"},
    {.section = kFlops,
     .name = "top_modules",
     .type = Integer,
     .initial = "1",
     .use = Noted,
     .text = "has no effect: the profile has a line for each unit"},
    {.name = "timers",
     .use = Noted,
     .text = "has no effect: the time of a step is always measured"},
};

}  // namespace

std::span<const ConfigKey> observation_keys() { return kObservationKeys; }

}  // namespace unishard::trainer::detail
