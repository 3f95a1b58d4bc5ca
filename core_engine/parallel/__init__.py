"""One model over several devices: how ranks talk, and how weights and layers are divided."""
