"""What is written to disk and read back: files that are there whole or not at all, arrays, and
optional packages.
"""
