"""Many nodes: read what they answer, group equal environments, check each group once."""
