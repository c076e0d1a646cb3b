import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

/**
 * Prints what RocketMQ's SelectMessageQueueByHash (org.apache.rocketmq.client.producer.selector, 4.x and 5.x) computes
 * for each line of hexadecimal UTF-8 on standard input: the String's hash, a space, the queue of as many as the first
 * argument.
 */
public class SelectByHash {
    public static void main(String[] arguments) throws Exception {
        int queues = Integer.parseInt(arguments[0]);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            Object arg = new String(HexFormat.of().parseHex(line), StandardCharsets.UTF_8);
            int value = arg.hashCode() % queues;
            if (value < 0) {
                value = Math.abs(value);
            }
            System.out.println(arg.hashCode() + " " + value);
        }
    }
}
