package rowmq;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Base64;

/** Transactional queues inside MySQL and MariaDB: sends in your transaction, and serves a pool of rowmq-consumer. */
public final class Rowmq {
    private static final Gson GSON = new Gson();

    /** The most messages of one call of {@code queue_send_all}. */
    private static final int MOST = 1000;

    private Rowmq() {}

    /** One of many messages. */
    public record NewMessage(Object body, Options options) {
        /** A message without options. */
        public NewMessage(Object body) {
            this(body, new Options());
        }
    }

    /** Handles a message: returns to ack, throws a {@link Verdict} or any other exception. */
    @FunctionalInterface
    public interface Handler {
        /** Handles it. */
        void handle(Message message) throws Exception;
    }

    /**
     * Sends a message in the open transaction of the connection: it exists if that commits. Bytes are sent as they are,
     * a string as UTF-8, anything else as Gson writes it.
     *
     * @throws Refused if the queue refuses it; nothing has been changed then
     */
    public static Sent send(Connection connection, String topic, Object body, Options options) throws SQLException {
        call(connection, "CALL " + options.procedure() + "(?, ?, ?)", topic, bytes(body), options.text());
        String outcome = "SELECT @queue_msg_id, @queue_duplicate, @queue_replaced";
        try (PreparedStatement statement = connection.prepareStatement(outcome);
                ResultSet row = statement.executeQuery()) {
            row.next();
            return new Sent(row.getString(1), row.getInt(2) != 0, row.getInt(3) != 0);
        }
    }

    /** The same, without options. */
    public static Sent send(Connection connection, String topic, Object body) throws SQLException {
        return send(connection, topic, body, new Options());
    }

    /**
     * Sends many messages, 1000 in a call, in the open transaction, and returns how many were stored. After any
     * exception roll back: a call before it may have stored its messages.
     */
    public static int sendAll(Connection connection, String topic, Iterable<NewMessage> messages) throws SQLException {
        int stored = 0;
        JsonArray batch = new JsonArray();
        for (NewMessage message : messages) {
            JsonObject fields = message.options().copy();
            byte[] body = bytes(message.body());
            try {
                String text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(body)).toString();
                fields.addProperty("body", text);
            } catch (CharacterCodingException noText) {
                fields.addProperty("body_base64", Base64.getEncoder().encodeToString(body));
            }
            batch.add(fields);
            if (batch.size() == MOST) {
                stored += sendBatch(connection, topic, batch);
                batch = new JsonArray();
            }
        }
        return batch.isEmpty() ? stored : stored + sendBatch(connection, topic, batch);
    }

    /**
     * Handles one message after another until the consumer ends the pool; after {@code maxMessages} (0: no end) it
     * returns, and the consumer starts the program again. Run it by
     * {@code rowmq-consumer pool TOPIC -- java -cp … Program}.
     */
    public static void serve(Handler handler, int maxMessages) throws IOException {
        Pool.serve(handler, maxMessages);
    }

    private static int sendBatch(Connection connection, String topic, JsonArray batch) throws SQLException {
        call(connection, "CALL queue_send_all(?, ?)", topic, batch.toString());
        try (PreparedStatement statement = connection.prepareStatement("SELECT @queue_sent");
                ResultSet row = statement.executeQuery()) {
            row.next();
            return row.getInt(1);
        }
    }

    private static void call(Connection connection, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int nth = 0; nth < values.length; nth++) {
                statement.setObject(nth + 1, values[nth]);
            }
            statement.execute();
        } catch (SQLException error) {
            throw Refused.named(error);
        }
    }

    private static byte[] bytes(Object body) {
        if (body instanceof byte[] bytes) {
            return bytes;
        }
        String text = body instanceof String string ? string : GSON.toJson(body);
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
