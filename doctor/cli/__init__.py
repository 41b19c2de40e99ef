"""The command line: one module per command; the only code that prints."""
