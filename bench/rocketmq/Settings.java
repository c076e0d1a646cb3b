import java.io.IOException;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;

/** What the benchmark tells its Java programs, in one file of properties. */
final class Settings {
    private final Properties properties = new Properties();
    private final byte[] body;
    private final long accounts;

    Settings(Path file) throws IOException {
        try (Reader reader = Files.newBufferedReader(file, StandardCharsets.UTF_8)) {
            properties.load(reader);
        }
        body = text("body").getBytes(StandardCharsets.UTF_8);
        accounts = Long.parseLong(text("accounts"));
    }

    String text(String name) {
        String value = properties.getProperty(name);
        if (value == null) {
            throw new IllegalArgumentException("the setting " + name + " is missing");
        }
        return value;
    }

    byte[] body() {
        return body;
    }

    long accounts() {
        return accounts;
    }
}
