"""Shows the report of a replay: text for a terminal, and the files of its HTML page."""
