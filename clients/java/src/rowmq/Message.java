package rowmq;

import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;

/**
 * A message that is being handled. The id is the same for every delivery, and the delivery number rises with each:
 * together they are the token by which another system can refuse what it has seen. Key, business id and trace parent
 * are null if it has none.
 */
public record Message(
        String topic,
        String id,
        long deliveryNo,
        long failures,
        Instant enqueuedAt,
        byte[] body,
        byte[] key,
        byte[] bizId,
        Map<String, String> headers,
        String traceParent) {

    /** The body as UTF-8. */
    public String text() {
        return new String(body, StandardCharsets.UTF_8);
    }

    /** Of a frame of a pool. */
    static Message of(JsonObject frame) {
        Map<String, String> headers = new TreeMap<>();
        if (frame.has("headers")) {
            frame.getAsJsonObject("headers").asMap().forEach((name, value) -> headers.put(name, value.getAsString()));
        }
        byte[] body = bytes(frame, "body");
        return new Message(
                frame.get("topic").getAsString(),
                frame.get("msg_id").getAsString(),
                frame.get("delivery_no").getAsLong(),
                frame.get("failures").getAsLong(),
                Instant.parse(frame.get("enqueued_at").getAsString()),
                body == null ? new byte[0] : body,
                bytes(frame, "key"),
                bytes(frame, "biz_id"),
                headers,
                frame.has("traceparent") ? frame.get("traceparent").getAsString() : null);
    }

    private static byte[] bytes(JsonObject frame, String name) {
        if (frame.has(name)) {
            return frame.get(name).getAsString().getBytes(StandardCharsets.UTF_8);
        }
        String encoded = name + "_base64";
        return frame.has(encoded) ? Base64.getDecoder().decode(frame.get(encoded).getAsString()) : null;
    }
}
