"""What the options and config files of trainers say about attention, as words of the workload."""
