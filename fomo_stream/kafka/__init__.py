"""The service: records from Kafka, scored and committed with their state. `service` has the main loop."""
