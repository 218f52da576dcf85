"""What everybody needs to write to disk and to read back, without torch.

atomic        files and folders that are there whole or not at all
arrays        arrays from .npy, .npz and .safetensors, and back
npz           arrays of an .npz, in memory or mapped
json_files    JSON, with errors that name the file
yaml_files    YAML, likewise
output_path   where a user asked results to be written
cache         the folder for what can be made again
lazy_names    names of a package that are loaded when first used
optional      packages only some users need
settings_files  YAML and TOML that people write
suggestions   "did you mean"
renamed       arguments that have a new name
"""
