package rowmq;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;

/** One program of {@code rowmq-consumer pool}. */
final class Pool {
    private static final int VERSION = 1;

    /** In characters: an answer has at most 64 KiB, and the queue keeps far less. */
    private static final int LONGEST_REASON = 8_000;

    private Pool() {}

    static void serve(Rowmq.Handler handler, int maxMessages) throws IOException {
        if (!Integer.toString(VERSION).equals(System.getenv("ROWMQ_POOL"))) {
            throw new IOException("start it by rowmq-consumer pool, of a version that speaks " + VERSION);
        }
        // The frames are for this program alone, and what the handler prints goes to standard error. A child that
        // inherits the streams of this process would still have them.
        InputStream frames = new BufferedInputStream(new FileInputStream(FileDescriptor.in), 1 << 16);
        OutputStream answers = new FileOutputStream(FileDescriptor.out);
        System.setIn(InputStream.nullInputStream());
        System.setOut(System.err);
        JsonObject ready = new JsonObject();
        ready.addProperty("rowmq_pool", VERSION);
        say(answers, ready);
        int handled = 0;
        for (String line = line(frames); line != null; line = line(frames)) {
            handled++;
            JsonObject answer = answer(handler, JsonParser.parseString(line).getAsJsonObject());
            if (handled == maxMessages) {
                answer.addProperty("last", true);
            }
            say(answers, answer);
            if (handled == maxMessages) {
                return;
            }
        }
    }

    private static JsonObject answer(Rowmq.Handler handler, JsonObject frame) {
        JsonObject answer = new JsonObject();
        answer.add("frame", frame.get("frame"));
        answer.addProperty("verdict", "ack");
        try {
            handler.handle(Message.of(frame));
        } catch (VirtualMachineError error) {
            // It has no memory left, say: the program ends, and the consumer starts another.
            throw error;
        } catch (Throwable error) {
            Verdict verdict = Verdict.of(error);
            if (verdict != error) {
                error.printStackTrace();
            }
            answer.addProperty("verdict", verdict.word);
            String reason = verdict.getMessage();
            if (!reason.isEmpty()) {
                answer.addProperty("reason", reason.substring(0, Math.min(reason.length(), LONGEST_REASON)));
            }
            if (verdict.delay != null) {
                answer.addProperty("delay", verdict.delay.toMillis() / 1e3);
            }
        }
        return answer;
    }

    /** Returns the next line; null at the end, which may be in the middle of a frame. */
    private static String line(InputStream frames) throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        for (int next = frames.read(); next >= 0; next = frames.read()) {
            if (next == '\n') {
                return line.toString(StandardCharsets.UTF_8);
            }
            line.write(next);
        }
        return null;
    }

    private static void say(OutputStream answers, JsonObject line) throws IOException {
        answers.write((line + "\n").getBytes(StandardCharsets.UTF_8));
        answers.flush();
    }
}
