"""A scheduling policy and a scheduler of one's own."""
