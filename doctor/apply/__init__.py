"""Carry a fix out: edit a project's files, or install into an environment and verify it."""
