"""Models people already have: found, hooked, balanced, and given back. Each file is one library's."""
