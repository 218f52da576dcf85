"""What a lower precision does to the choice of experts: computed in it, layer by layer."""
