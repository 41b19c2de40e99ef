"""Fixes: the smallest changes after which the rulebook reports no error."""
