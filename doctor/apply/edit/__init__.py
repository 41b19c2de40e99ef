"""Write a fix into a project's own files: requirements.txt and what it includes, pyproject.toml."""
