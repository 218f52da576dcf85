"""What everybody needs to write to disk and to read back, without torch.

atomic        files and folders that are there whole or not at all
arrays        arrays from .npy, .npz and .safetensors, and back
npz           arrays of an .npz, in memory or mapped
json_files    JSON, with errors that name the file
cache         the folder for what can be made again
optional      packages only some users need
suggestions   "did you mean"
renamed       arguments that have a new name
"""
