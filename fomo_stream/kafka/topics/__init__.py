"""The topics of the service: checked and created before the start, and watched from then on."""
