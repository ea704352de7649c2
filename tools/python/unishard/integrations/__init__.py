"""Lets trainers of other libraries save and load UniShard checkpoints, with one line each.

    trainer = unishard.integrations.transformers.patch(trainer)                # Hugging Face Trainer: plain, DDP, FSDP2, DeepSpeed
    unishard.integrations.accelerate.save_state(accelerator, folder)           # instead of accelerator.save_state(folder)
    Trainer(plugins=[unishard.integrations.lightning.CheckpointIO()])          # Lightning

Each module needs its library, and is imported by its own name, for example `import unishard.integrations.transformers`.
"""
