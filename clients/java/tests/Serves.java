import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import rowmq.Message;
import rowmq.Rowmq;
import rowmq.Verdict;

/** A program of a pool that prints, fails, and gives each verdict. */
final class Serves {
    public static void main(String[] arguments) throws IOException {
        Rowmq.serve(Serves::handle, 20);
    }

    private static void handle(Message message) throws IOException {
        System.out.println("handling " + message.text());
        Process child = new ProcessBuilder("echo", "by a child").start();
        System.out.print(new String(child.getInputStream().readAllBytes(), StandardCharsets.UTF_8));
        System.in.readAllBytes();
        switch (message.text()) {
            case "discard" -> throw Verdict.discard("old");
            case "dead" -> throw Verdict.deadLetter("broken");
            case "error" -> throw new IllegalStateException("TypeError: odd");
            default -> {
                String key = new String(message.key(), StandardCharsets.UTF_8);
                String line = message.id() + " " + ProcessHandle.current().pid() + " " + key + "\n";
                Path log = Path.of(System.getenv("LOG"));
                Files.writeString(log, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            }
        }
    }
}
