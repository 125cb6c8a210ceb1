"""Shows the report of a replay: text for a terminal, and the parts of its HTML page."""
