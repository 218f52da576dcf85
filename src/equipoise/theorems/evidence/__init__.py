"""What statements are checked on: runs on fixed scores, drawn batches, built-in problems."""
