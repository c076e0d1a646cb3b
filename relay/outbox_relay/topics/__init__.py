"""The topic registry from the operator's side: what Kafka has, what is registered, and changing it safely."""
