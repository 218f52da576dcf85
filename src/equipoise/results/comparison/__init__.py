"""What a comparison found, as numbers and sentences: columns, paired differences, and one file that
keeps it all.
"""
