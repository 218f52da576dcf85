"""Other systems: Hugging Face checkpoints, torchtitan, Megatron, axolotl, ms-swift. A file or
folder for each.
"""
