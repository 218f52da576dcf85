"""What runs leave on disk, as rows and columns."""
