#!/bin/bash
# Whether the broker of --bootstrap-server listens, which is what the health check asks of Kafka's own script.
exec 3<> "/dev/tcp/${2%%:*}/${2##*:}"
