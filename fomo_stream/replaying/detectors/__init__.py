"""Other detectors in the same pass: of other libraries (`rivals`), and ours with other settings (`variants`)."""
