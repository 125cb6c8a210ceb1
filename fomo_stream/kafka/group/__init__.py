"""What a group agrees on: `log` holds it, `agreement` compares the settings, `schema` the features."""
