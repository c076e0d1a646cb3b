import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.common.utils.Utils;

/**
 * Prints Kafka's hash for each line of hexadecimal on standard input: the bytes again, a space, the positive hash.
 *
 * <p>Murmur2Vectors.class beside it is this file, made by `javac --release 17 -g:none -cp kafka-clients.jar`: a Java
 * that runs a broker need not bring a compiler.
 */
public class Murmur2Vectors {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            System.out.println(line + " " + Utils.toPositive(Utils.murmur2(HexFormat.of().parseHex(line))));
        }
    }
}
