"""Other systems: Hugging Face checkpoints, torchtitan, Megatron. A file or folder for each."""
