import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** One round: threads make transactions for so long, each on a session of its own. */
final class Run implements AutoCloseable {
    interface Transaction {
        void run(Database database) throws Exception;
    }

    private final Transaction transaction;
    private final List<Database> sessions;
    private final ExecutorService pool;
    private long began;

    Run(List<Database> sessions, Transaction transaction) {
        this.sessions = sessions;
        this.transaction = transaction;
        pool = Executors.newFixedThreadPool(sessions.size());
    }

    /** Answer the number of transactions, once all have ended. */
    long run(double seconds) throws Exception {
        CountDownLatch start = new CountDownLatch(1);
        List<Future<Long>> counts = new ArrayList<>();
        for (Database session : sessions) {
            counts.add(pool.submit(() -> {
                start.await();
                return repeat(session, System.nanoTime() + (long) (seconds * 1e9));
            }));
        }
        began = System.nanoTime();
        start.countDown();
        long transactions = 0;
        for (Future<Long> count : counts) {
            transactions += count.get();
        }
        return transactions;
    }

    /** Seconds since the first transaction began. */
    double elapsed() {
        return (System.nanoTime() - began) / 1e9;
    }

    private long repeat(Database session, long until) throws Exception {
        long count = 0;
        for (; System.nanoTime() < until; count++) {
            transaction.run(session);
        }
        return count;
    }

    @Override
    public void close() {
        pool.shutdownNow();
    }
}
