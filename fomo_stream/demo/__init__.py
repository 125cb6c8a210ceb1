"""`fomo-stream demo`: simulated sensors, an embedded broker and the real service, live in the terminal."""
