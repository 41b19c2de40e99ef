"""Releases on record: the index, platforms, wheels."""
