"""Shows the report of a replay: one HTML file, and text for a terminal."""
