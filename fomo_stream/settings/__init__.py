"""Every setting: flags, environment, configuration file and defaults. Nothing else reads the environment."""
