"""Declared environments: requirement files, lock files, project files, scripts."""
