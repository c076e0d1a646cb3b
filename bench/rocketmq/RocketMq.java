import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** RocketMQ's transactional messages, with the business transaction in the listener. */
final class RocketMq implements AutoCloseable {
    private static final String CLUSTER = "bench";
    private static final long KNOWN_LIMIT = 30_000_000_000L;
    private static final Map<String, String> TYPE = Map.of("+message.type", "TRANSACTION");

    private final Settings settings;
    private final TransactionMQProducer producer;
    private final List<MessageQueue> queues;

    RocketMq(Settings settings) throws MQClientException, InterruptedException {
        this.settings = settings;
        producer = new TransactionMQProducer(settings.text("group"));
        producer.setNamesrvAddr(settings.text("namesrv"));
        producer.setTransactionListener(new Listener());
        producer.start();
        queues = createdQueues();
    }

    /** The queues of the topic. The broker names itself to the name server a moment after it listens. */
    private List<MessageQueue> createdQueues() throws MQClientException, InterruptedException {
        String topic = settings.text("topic");
        long deadline = System.nanoTime() + KNOWN_LIMIT;
        while (true) {
            try {
                producer.createTopic(CLUSTER, topic, Integer.parseInt(settings.text("queues")), TYPE);
                return producer.fetchPublishMessageQueues(topic);
            } catch (MQClientException error) {
                if (System.nanoTime() > deadline) {
                    producer.shutdown(); // (its threads would keep this process)
                    throw error;
                }
                Thread.sleep(200);
            }
        }
    }

    /** Half message, local transaction, decision; the decision is on its way when this returns. */
    void transaction(Database database) throws MQClientException {
        Message message = new Message(settings.text("topic"), settings.text("tag"), settings.body());
        message.setKeys(new String(Database.key(), StandardCharsets.UTF_8));
        message.putUserProperty("source", "bench");
        TransactionSendResult result = producer.sendMessageInTransaction(message, database);
        if (result.getSendStatus() != SendStatus.SEND_OK
                || result.getLocalTransactionState() != LocalTransactionState.COMMIT_MESSAGE) {
            throw new IllegalStateException("not committed: " + result);
        }
    }

    /** How many messages of the topic consumers could have read so far. */
    long visible() throws MQClientException {
        long messages = 0;
        for (MessageQueue queue : queues) {
            messages += producer.maxOffset(queue);
        }
        return messages;
    }

    @Override
    public void close() {
        producer.shutdown();
    }

    private static final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object database) {
            try {
                ((Database) database).business();
                return LocalTransactionState.COMMIT_MESSAGE;
            } catch (java.sql.SQLException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.UNKNOW;
        }
    }
}
