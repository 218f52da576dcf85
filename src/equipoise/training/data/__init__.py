"""From texts to batches.

texts        where documents come from, and which of them validate
docstrings   the corpus that every machine has
tokenizer    byte-level BPE, trained here or made elsewhere
corpus       the tokens in the cache, mapped from the disk
batches      which sequences a step trains on
"""
