import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import rowmq.Options;
import rowmq.Refused;
import rowmq.Rowmq;
import rowmq.Rowmq.NewMessage;
import rowmq.Sent;

/** Runs the package on the server of ROWMQ_URL, in whose database each test's topic is. */
final class Sends {
    public static void main(String[] arguments) throws Exception {
        aMessageExistsIfItsTransactionCommits();
        aRefusalHasANameAndLeavesTheTransactionOpen();
        oneMessageHoldsAKey();
        manyMessagesAreSentInOneTransaction();
    }

    private static void aMessageExistsIfItsTransactionCommits() throws SQLException {
        try (Connection connection = connected()) {
            Options options = new Options()
                    .priority(3)
                    .key("ada")
                    .headers(Map.of("trace", "4bf9"))
                    .deliverIn(Duration.ofHours(48))
                    .expiresAt(Instant.now().plus(Duration.ofDays(30)));
            for (int committed = 0; committed < 2; committed++) {
                Sent sent = Rowmq.send(connection, "sending", Map.of("order", 17), options);
                check(sent.id().length() == 36 && !sent.duplicate(), sent);
                if (committed == 1) {
                    connection.commit();
                } else {
                    connection.rollback();
                }
                check(bodies(connection, "queue_scheduled", "sending").size() == committed, committed);
            }
        }
    }

    private static void aRefusalHasANameAndLeavesTheTransactionOpen() throws SQLException {
        try (Connection connection = connected()) {
            Rowmq.send(connection, "refusals", "first");
            refused(Refused.TopicNotFound.class, () -> Rowmq.send(connection, "no-such-topic", "x"));
            refused(
                    Refused.InvalidOptions.class,
                    () -> Rowmq.send(connection, "refusals", "x", new Options().priority(10)));
            connection.commit();
            check(bodies(connection, "queue_message", "refusals").size() == 1, "refusals");
            connection.setAutoCommit(true);
            refused(
                    Refused.NoTransaction.class,
                    () -> Rowmq.sendAll(connection, "refusals", List.of(new NewMessage("x"))));
        }
    }

    private static void oneMessageHoldsAKey() throws SQLException {
        try (Connection connection = connected()) {
            Options options = new Options().unique("c-7").onConflict("replace").deliverIn(Duration.ofMinutes(1));
            Sent first = Rowmq.send(connection, "unique", "1", options);
            Sent second = Rowmq.send(connection, "unique", "2", options);
            connection.commit();
            check(!first.duplicate() && !first.replaced(), first);
            check(second.equals(new Sent(first.id(), true, true)), second);
        }
    }

    private static void manyMessagesAreSentInOneTransaction() throws SQLException {
        byte[] every = new byte[256];
        for (int n = 0; n < every.length; n++) {
            every[n] = (byte) n;
        }
        List<NewMessage> messages = new ArrayList<>();
        for (int n = 0; n < 2_500; n++) {
            messages.add(new NewMessage(n));
        }
        messages.add(new NewMessage(every, new Options().key("k")));
        try (Connection connection = connected()) {
            int stored = Rowmq.sendAll(connection, "many", messages);
            Rowmq.send(connection, "many", every);
            connection.commit();
            List<byte[]> bodies = bodies(connection, "queue_message", "many");
            check(stored == 2_501 && bodies.size() == 2_502, stored);
            String last = new String(bodies.get(2_499), StandardCharsets.UTF_8);
            check(last.equals("2499"), last);
            for (byte[] body : bodies.subList(2_500, 2_502)) {
                check(java.util.Arrays.equals(body, every), body.length);
            }
        }
    }

    private static Connection connected() throws SQLException {
        URI url = URI.create(System.getenv("ROWMQ_URL"));
        String[] account = url.getUserInfo().split(":", 2);
        String place = url.getHost() + ":" + url.getPort() + url.getPath();
        String jdbc = "jdbc:mariadb://" + place + "?allowPublicKeyRetrieval=true";
        Connection connection = DriverManager.getConnection(jdbc, account[0], account.length > 1 ? account[1] : "");
        connection.setAutoCommit(false);
        return connection;
    }

    private static List<byte[]> bodies(Connection connection, String table, String topic) throws SQLException {
        String query = "SELECT m.body FROM " + table
                + " m JOIN queue_topic t ON t.id = m.topic_id WHERE t.name = ? ORDER BY m.id";
        List<byte[]> bodies = new ArrayList<>();
        try (PreparedStatement statement = connection.prepareStatement(query)) {
            statement.setString(1, topic);
            ResultSet rows = statement.executeQuery();
            while (rows.next()) {
                bodies.add(rows.getBytes(1));
            }
        }
        connection.commit();
        return bodies;
    }

    private interface Call {
        void call() throws SQLException;
    }

    private static void refused(Class<? extends Refused> expected, Call call) {
        SQLException error = null;
        try {
            call.call();
        } catch (SQLException thrown) {
            error = thrown;
        }
        check(expected.isInstance(error), error);
    }

    private static void check(boolean holds, Object what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
