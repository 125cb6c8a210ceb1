"""What is sent between two commits takes effect with the second one, together with the offsets."""
