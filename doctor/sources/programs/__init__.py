"""What a Python program states of its job: read from its syntax tree, never run."""
