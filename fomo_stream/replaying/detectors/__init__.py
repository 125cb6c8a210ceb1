"""Detectors to compare with in the same pass: of libraries (`rivals`), and ours with other settings (`variants`)."""
