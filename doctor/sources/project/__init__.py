"""The project's own section in pyproject.toml: read it, propose it."""
