"""What the build of a source distribution needs, by its own files: nothing of it is imported or run."""
