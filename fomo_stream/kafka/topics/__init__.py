"""The topics of the service: checked and created before the start, and looked at from then on."""
