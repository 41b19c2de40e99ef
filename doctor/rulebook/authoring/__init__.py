"""Tools for rule authors: lint, in-file tests, scaffolding."""
