import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Executors;
import org.tensorflow.Result;
import org.tensorflow.SavedModelBundle;
import org.tensorflow.SessionFunction;
import org.tensorflow.Tensor;
import org.tensorflow.TensorFlow;

/**
 * A model server that is not Python: a SavedModel's metagraph "serve" behind TensorFlow Serving's REST predict.
 *
 * <p>Usage: java ModelServer SAVED_MODEL MODEL_NAME ADDRESS_FILE. It answers the model's warm-up requests, writes its port,
 * TensorFlow's version and what the warm-up gave into ADDRESS_FILE as JSON, and serves until it is killed.
 */
public final class ModelServer {
  private final SavedModelBundle model;

  private ModelServer(SavedModelBundle model) {
    this.model = model;
  }

  public static void main(String[] words) throws Exception {
    Path savedModel = Path.of(words[0]);
    String name = words[1];
    ModelServer server = new ModelServer(SavedModelBundle.load(savedModel.toString(), "serve"));
    JsonObject told = new JsonObject();
    told.addProperty("tensorflow", TensorFlow.version());
    told.add("warmup", WarmupRequests.replay(savedModel, server.model));
    HttpServer http = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    http.setExecutor(Executors.newFixedThreadPool(4));
    String path = "/v1/models/" + name;
    http.createContext(path, exchange -> server.status(exchange, path));
    http.createContext(path + ":predict", server::predict);
    http.start();
    told.addProperty("port", http.getAddress().getPort());
    Path partial = Path.of(words[2] + ".partial");
    Files.writeString(partial, told.toString());
    Files.move(partial, Path.of(words[2]), StandardCopyOption.ATOMIC_MOVE);
  }

  private void status(HttpExchange exchange, String path) throws IOException {
    if (!exchange.getRequestURI().getPath().equals(path)) {
      answer(exchange, 404, error("there is nothing here: " + exchange.getRequestURI().getPath()));
      return;
    }
    answer(exchange, 200, JsonParser.parseString("{\"model_version_status\": [{\"state\": \"AVAILABLE\"}]}"));
  }

  private void predict(HttpExchange exchange) throws IOException {
    JsonElement answered;
    int code = 200;
    try (var reader = new InputStreamReader(exchange.getRequestBody(), StandardCharsets.UTF_8)) {
      answered = answerTo(JsonParser.parseReader(reader).getAsJsonObject());
    } catch (RuntimeException refused) {
      code = 400;
      answered = error(String.valueOf(refused.getMessage()));
    }
    answer(exchange, code, answered);
  }

  private JsonElement answerTo(JsonObject request) {
    String key = request.has("signature_name") ? request.get("signature_name").getAsString() : "serving_default";
    SessionFunction function = model.function(key);
    Map<String, Tensor> inputs = new HashMap<>();
    try {
      RestJson.read(request, function.signature().getInputs(), inputs);
      try (Result outputs = function.call(inputs)) {
        return RestJson.write(outputs);
      }
    } finally {
      inputs.values().forEach(Tensor::close);
    }
  }

  private static JsonObject error(String message) {
    JsonObject made = new JsonObject();
    made.addProperty("error", message);
    return made;
  }

  private static void answer(HttpExchange exchange, int code, JsonElement body) throws IOException {
    byte[] bytes = body.toString().getBytes(StandardCharsets.UTF_8);
    exchange.getResponseHeaders().set("Content-Type", "application/json");
    exchange.sendResponseHeaders(code, bytes.length);
    exchange.getResponseBody().write(bytes);
    exchange.close();
  }
}
