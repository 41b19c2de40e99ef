"""Helpers without knowledge of the domain: YAML, TOML, atomic writes, redaction."""
