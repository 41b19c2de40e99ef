"""Verify a fix: resolve it, install it on trial, diagnose again, apply it, roll it back."""
