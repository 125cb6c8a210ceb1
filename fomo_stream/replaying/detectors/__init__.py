"""Other detectors in the same pass: those of other libraries (`rivals`), and ours with other settings (`variants`)."""
