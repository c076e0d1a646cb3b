import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Properties;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLong;

/** One session with PostgreSQL: the business transaction that every variant makes, and the outbox's statements. */
final class Database implements AutoCloseable {
    private static final AtomicLong ORDERS = new AtomicLong(System.nanoTime());

    private final Connection connection;
    private final PreparedStatement update;
    private final PreparedStatement insert;
    private final PreparedStatement send;
    private final PreparedStatement prepare;
    private final PreparedStatement join;
    private final PreparedStatement decide;
    private final Settings settings;

    Database(Settings settings) throws SQLException {
        this.settings = settings;
        Properties login = new Properties();
        login.setProperty("user", settings.text("user"));
        login.setProperty("password", settings.text("password"));
        // Prepared on the server from the first use, as psycopg does it for the library.
        login.setProperty("prepareThreshold", "1");
        // The server says of what type a text is, as the library leaves it to do.
        login.setProperty("stringtype", "unspecified");
        connection = DriverManager.getConnection(settings.text("jdbc"), login);
        update = connection.prepareStatement(settings.text("update"));
        insert = connection.prepareStatement(settings.text("insert"));
        send = connection.prepareStatement(settings.text("send"));
        prepare = connection.prepareStatement(settings.text("prepare"));
        join = connection.prepareStatement(settings.text("join"));
        decide = connection.prepareStatement(settings.text("decide"));
    }

    /** The local transaction alone: what the listener of RocketMQ does. */
    void business() throws SQLException {
        begin();
        writeAccount();
        writeOrder();
        connection.commit();
    }

    /** The local transaction with a message of the outbox in it. */
    void send() throws SQLException {
        begin();
        writeAccount();
        writeOrder();
        fill(send);
        one(send);
        connection.commit();
    }

    /** The half message with the first local write, the decision with the last. */
    void prepareAndCommit() throws SQLException {
        begin();
        writeOrder();
        Half half = prepare();
        connection.commit();
        writeAccount();
        commit(half);
        connection.commit();
    }

    /** The programming model of RocketMQ 4.x: half message, then the local transaction, which locks and decides it. */
    void listener() throws SQLException {
        connection.setAutoCommit(true);
        Half half = prepare();
        begin();
        name(join, half);
        one(join);
        writeAccount();
        writeOrder();
        commit(half);
        connection.commit();
    }

    private void begin() throws SQLException {
        connection.setAutoCommit(false);
    }

    private void writeAccount() throws SQLException {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        update.setLong(1, random.nextLong(1, 1000));
        update.setLong(2, random.nextLong(1, settings.accounts() + 1));
        update.executeUpdate();
    }

    private void writeOrder() throws SQLException {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        insert.setLong(1, random.nextLong(1, settings.accounts() + 1));
        insert.setLong(2, random.nextLong(1, 1000));
        insert.executeUpdate();
    }

    private void fill(PreparedStatement statement) throws SQLException {
        byte[] key = key();
        statement.setString(1, settings.text("topic"));
        statement.setBytes(2, key);
        statement.setBytes(3, settings.body());
        statement.setString(4, settings.text("headers"));
        statement.setString(5, "{" + settings.text("tag") + "}");
        statement.setString(6, settings.text("group"));
        statement.setInt(7, lane(key));
    }

    /** The lane of a message as the library says it, which spares the table's trigger the work. */
    private int lane(byte[] key) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            digest.update((settings.text("topic") + ":").getBytes(StandardCharsets.UTF_8));
            return digest.digest(key)[0] & 7;
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    private Half prepare() throws SQLException {
        fill(prepare);
        try (ResultSet rows = prepare.executeQuery()) {
            rows.next();
            return new Half(rows.getLong(1), rows.getString(2));
        }
    }

    private void commit(Half half) throws SQLException {
        name(decide, half);
        one(decide);
    }

    private static void name(PreparedStatement statement, Half half) throws SQLException {
        statement.setLong(1, half.id());
        statement.setString(2, half.messageId());
    }

    private static void one(PreparedStatement statement) throws SQLException {
        try (ResultSet rows = statement.executeQuery()) {
            if (!rows.next()) {
                throw new IllegalStateException("somebody else has decided the half message");
            }
        }
    }

    static byte[] key() {
        return ("order-" + ORDERS.incrementAndGet() % 10_000).getBytes(StandardCharsets.UTF_8);
    }

    @Override
    public void close() throws SQLException {
        connection.close();
    }

    private record Half(long id, String messageId) {}
}
