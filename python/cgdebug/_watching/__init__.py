"""What a watch is made of: modules of a model, hooks on them, and the probes of each place."""
