package rowmq;

import com.google.gson.JsonObject;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;

/** Options of a message: those of {@code queue_send} and {@code queue_send_unique} in the SQL contract. */
public final class Options {
    private final JsonObject fields = new JsonObject();
    private boolean isUnique;

    /** The highest is handled first. */
    public Options priority(int priority) {
        fields.addProperty("priority", priority);
        return this;
    }

    /** Messages with the same key are related: a stream keeps their order. */
    public Options key(String key) {
        return with("key", key);
    }

    /** The message's id in your business. */
    public Options bizId(String bizId) {
        return with("biz_id", bizId);
    }

    /** Headers, by name. */
    public Options headers(Map<String, String> headers) {
        JsonObject all = new JsonObject();
        headers.forEach(all::addProperty);
        fields.add("headers", all);
        return this;
    }

    /** The message's id. */
    public Options id(String id) {
        return with("id", id);
    }

    /** Becomes ready after this time. */
    public Options deliverIn(Duration time) {
        return with("deliver_in", time);
    }

    /** Becomes ready at this moment. */
    public Options deliverAt(Instant moment) {
        return with("deliver_at", moment.toString());
    }

    /** Is not handled any more after this time. */
    public Options expiresIn(Duration time) {
        return with("expires_in", time);
    }

    /** Is not handled any more after this moment. */
    public Options expiresAt(Instant moment) {
        return with("expires_at", moment.toString());
    }

    /** It is the only message with this key in its topic. */
    public Options unique(String key) {
        isUnique = true;
        return with("unique", key);
    }

    /** The key is held for this time. */
    public Options uniqueFor(Duration time) {
        isUnique = true;
        return with("unique_for", time);
    }

    /** What becomes of a message whose key is held: {@code keep}, {@code replace} or {@code debounce}. */
    public Options onConflict(String what) {
        isUnique = true;
        return with("on_conflict", what);
    }

    /** The longest that debouncing puts a message off. */
    public Options maxWait(Duration time) {
        isUnique = true;
        return with("max_wait", time);
    }

    /** There is a procedure of its own, with a privilege of its own, for messages with a key. */
    String procedure() {
        return isUnique ? "queue_send_unique" : "queue_send";
    }

    /** Returns them as JSON, null if there are none. */
    String text() {
        return fields.size() == 0 ? null : fields.toString();
    }

    JsonObject copy() {
        return fields.deepCopy();
    }

    private Options with(String name, Duration time) {
        fields.addProperty(name, time.toMillis() / 1e3);
        return this;
    }

    private Options with(String name, String value) {
        fields.addProperty(name, value);
        return this;
    }
}
