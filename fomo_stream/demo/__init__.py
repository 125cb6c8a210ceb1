"""`fomo-stream demo`: simulated sensors, an embedded broker and the real service with its status page."""
