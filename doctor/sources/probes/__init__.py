"""Facts of an installed environment: one module per source."""
