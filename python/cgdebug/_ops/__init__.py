"""How every op of a capture, or of an eager run, becomes a row of an op log."""
