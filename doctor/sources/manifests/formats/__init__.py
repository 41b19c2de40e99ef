"""One module per requirement, lock or project file format."""
