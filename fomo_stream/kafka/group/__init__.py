"""What the members of a group agree on: settings and schema, through a log in the state topic."""
