"""Compiled files: what they are, what the dynamic loader makes of them, and who owns them."""
