"""Every setting of fomo-stream: flags, environment variables, configuration file and defaults.

A flag wins over the environment, which wins over the configuration file, which wins over the default. The
names are the same everywhere: flag `--batch-size`, variable `FOMO_BATCH_SIZE`, line `batch-size = 64` in the
TOML file given by `--config` or `FOMO_CONFIG`. Settings of the Kafka clients pass through under `kafka`:
`--kafka.security.protocol=SSL`, `FOMO_KAFKA_SECURITY_PROTOCOL=SSL`, or a `[kafka]` table. Their values may be
secrets and are never shown. Unknown names are refused.

`sources` reads these sources and explains mistakes; no other module reads the environment. `flags` and `topic_flags`
hold groups of flags that several commands share; `service_settings`, `replay`, `notify` and `commands` hold the
settings of the commands, `rule_spec` the rules and windows of maintenance.
"""
