"""The agreement of a group: `group_log` holds it, `agreement` compares the settings, `agreed_schema` the features."""
