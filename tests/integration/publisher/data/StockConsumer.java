import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Prints the first records of a topic as Kafka's own Java consumer reads them, one to a line: partition, offset, key and
 * value, then name=value of each header; all texts and bytes in hexadecimal, "-" for null.
 *
 * <p>Arguments: bootstrap servers, topic, partitions, records. StockConsumer.class beside it is this file, made by
 * `javac --release 17 -g:none -cp kafka-clients.jar`: a Java that runs a broker need not bring a compiler.
 */
public class StockConsumer {
    public static void main(String[] arguments) {
        List<TopicPartition> places = IntStream.range(0, Integer.parseInt(arguments[2]))
                .mapToObj(number -> new TopicPartition(arguments[1], number))
                .toList();
        int left = Integer.parseInt(arguments[3]);
        Map<String, Object> settings =
                Map.of("bootstrap.servers", arguments[0], "isolation.level", "read_committed");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(places);
            consumer.seekToBeginning(places);
            while (left > 0) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(line(record));
                    left--;
                }
            }
        }
    }

    private static String line(ConsumerRecord<byte[], byte[]> record) {
        StringBuilder line = new StringBuilder();
        line.append(record.partition()).append(' ').append(record.offset());
        line.append(' ').append(hex(record.key())).append(' ').append(hex(record.value()));
        for (Header header : record.headers()) {
            line.append(' ').append(hex(header.key().getBytes(java.nio.charset.StandardCharsets.UTF_8)));
            line.append('=').append(hex(header.value()));
        }
        return line.toString();
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "-" : HexFormat.of().formatHex(bytes);
    }
}
