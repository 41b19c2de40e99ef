"""Rules as data: load, check and index them, evaluate them, predict backends."""
