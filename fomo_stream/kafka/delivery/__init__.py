"""Outputs sent between two commits take effect with the second one, together with the offsets."""
