import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Prints what RocketMQ's own SelectMessageQueueByHash chooses for each line of hexadecimal UTF-8 on standard input: the
 * String's hash, a space, the queue of as many as the first argument.
 */
public class SelectByHash {
    public static void main(String[] arguments) throws Exception {
        List<MessageQueue> queues = new ArrayList<>();
        for (int queue = 0; queue < Integer.parseInt(arguments[0]); queue++) {
            queues.add(new MessageQueue("topic", "broker", queue));
        }
        SelectMessageQueueByHash selector = new SelectMessageQueueByHash();
        Message message = new Message("topic", new byte[0]);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            Object arg = new String(HexFormat.of().parseHex(line), StandardCharsets.UTF_8);
            System.out.println(arg.hashCode() + " " + selector.select(queues, message, arg).getQueueId());
        }
    }
}
