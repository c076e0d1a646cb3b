import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * The client of both sides: threads that make one transaction after the other, each on its own database session.
 *
 * <p>Reads lines "variant threads seconds". Answers each with one line: transactions, when they began (seconds since
 * 1970), the seconds they took, and the seconds until consumers could read the last message (of RocketMQ; the outbox's
 * relay is asked elsewhere).
 */
final class Client {
    private static final long VISIBLE_LIMIT = 30_000_000_000L;

    private final Settings settings;
    private final RocketMq peer;
    /** Kept for all rounds, as a pool keeps them: a new session plans each statement anew and knows no table yet. */
    private final List<Database> sessions = new ArrayList<>();

    private Client(Settings settings, RocketMq peer) {
        this.settings = settings;
        this.peer = peer;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // RocketMQ's client says things of its own
        Settings settings = new Settings(Path.of(arguments[0]));
        try (RocketMq peer = new RocketMq(settings);
                BufferedReader orders = new BufferedReader(new InputStreamReader(System.in))) {
            Client client = new Client(settings, peer);
            answers.println("ready");
            for (String order = orders.readLine(); order != null; order = orders.readLine()) {
                String[] words = order.split(" ");
                double seconds = Double.parseDouble(words[2]);
                answers.println(client.run(words[0], Integer.parseInt(words[1]), seconds));
            }
        }
        System.exit(0);
    }

    private String run(String name, int threads, double limit) throws Exception {
        while (sessions.size() < threads) {
            sessions.add(new Database(settings));
        }
        boolean isPeer = name.equals("rocketmq");
        long before = isPeer ? peer.visible() : 0;
        try (Run run = new Run(sessions.subList(0, threads), variant(name))) {
            long transactions = run.run(limit);
            double seconds = run.elapsed();
            if (isPeer) {
                await(before + transactions);
            }
            double visible = run.elapsed();
            double began = System.currentTimeMillis() / 1e3 - run.elapsed();
            return transactions + " " + began + " " + seconds + " " + visible;
        }
    }

    private Run.Transaction variant(String name) {
        return switch (name) {
            case "rocketmq" -> peer::transaction;
            case "business" -> Database::business;
            case "send" -> Database::send;
            case "prepare" -> Database::prepareAndCommit;
            case "listener" -> Database::listener;
            default -> throw new IllegalArgumentException("no variant " + name);
        };
    }

    private void await(long messages) throws Exception {
        long deadline = System.nanoTime() + VISIBLE_LIMIT;
        long visible = peer.visible();
        while (visible < messages) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(messages - visible + " committed messages cannot be read");
            }
            Thread.sleep(1);
            visible = peer.visible();
        }
    }
}
