# Writes the settings from the variables KAFKA_…, formats the storage at the first start, and runs the broker.
set -eu
env | sed -n 's/^KAFKA_//p' | grep -v '^HEAP_OPTS=' | while IFS='=' read -r name value; do
    printf '%s=%s\n' "$(printf '%s' "$name" | tr 'A-Z_' 'a-z.')" "$value"
done > /tmp/kafka.properties
run="java $KAFKA_HEAP_OPTS -XX:+UseSerialGC -Dlog4j2.configurationFile=/opt/kafka/log4j2.properties -cp /opt/kafka/libs/*"
mkdir -p "$KAFKA_LOG_DIRS"
set -f
$run kafka.tools.StorageTool format --ignore-formatted --cluster-id AAAAAAAAAAAAAAAAAAAAAQ --config /tmp/kafka.properties
exec $run kafka.Kafka /tmp/kafka.properties
