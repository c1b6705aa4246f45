import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.tensorflow.Result;
import org.tensorflow.Signature.TensorDescription;
import org.tensorflow.Tensor;
import org.tensorflow.ndarray.NdArray;
import org.tensorflow.ndarray.NdArrays;
import org.tensorflow.ndarray.Shape;
import org.tensorflow.proto.DataType;
import org.tensorflow.types.TFloat32;
import org.tensorflow.types.TInt64;
import org.tensorflow.types.TString;

/** TensorFlow Serving's JSON of requests and answers, in its row format ("instances"). */
final class RestJson {
  private RestJson() {}

  /** Makes a tensor of each input; a row is an object of all inputs, or the value of the only one. */
  static void read(JsonObject request, Map<String, TensorDescription> signature, Map<String, Tensor> into) {
    JsonArray rows = request.getAsJsonArray("instances");
    if (rows == null || rows.size() == 0) {
      throw new IllegalArgumentException("the request has no \"instances\"");
    }
    for (var input : signature.entrySet()) {
      JsonArray column = new JsonArray();
      for (JsonElement row : rows) {
        boolean isValue = !row.isJsonObject() || row.getAsJsonObject().has("b64");
        JsonElement value = isValue && signature.size() == 1 ? row : row.getAsJsonObject().get(input.getKey());
        if (value == null) {
          throw new IllegalArgumentException("an instance has no \"" + input.getKey() + "\"");
        }
        column.add(value);
      }
      into.put(input.getKey(), tensor(column, input.getValue().dataType));
    }
  }

  /** The rows of all outputs: objects, or values where there is one output. */
  static JsonObject write(Result outputs) {
    JsonArray rows = new JsonArray();
    for (var output : outputs) {
      JsonArray column = values(output.getValue());
      for (int row = 0; row < column.size(); row++) {
        if (outputs.size() == 1) {
          rows.add(column.get(row));
          continue;
        }
        if (rows.size() == row) {
          rows.add(new JsonObject());
        }
        rows.get(row).getAsJsonObject().add(output.getKey(), column.get(row));
      }
    }
    JsonObject answer = new JsonObject();
    answer.add("predictions", rows);
    return answer;
  }

  private static Tensor tensor(JsonArray column, DataType type) {
    List<Long> sizes = new ArrayList<>();
    for (JsonElement inner = column; inner.isJsonArray(); inner = inner.getAsJsonArray().get(0)) {
      sizes.add((long) inner.getAsJsonArray().size());
    }
    Shape shape = Shape.of(sizes.stream().mapToLong(Long::longValue).toArray());
    List<JsonElement> flat = new ArrayList<>();
    flatten(column, flat);
    if (flat.size() != shape.size()) {
      throw new IllegalArgumentException("the instances are not of one shape");
    }
    int[] next = {0};
    switch (type) {
      case DT_FLOAT:
        return TFloat32.tensorOf(shape, made ->
            made.scalars().forEach(scalar -> scalar.setFloat(flat.get(next[0]++).getAsFloat())));
      case DT_INT64:
        return TInt64.tensorOf(shape, made ->
            made.scalars().forEach(scalar -> scalar.setLong(flat.get(next[0]++).getAsLong())));
      case DT_STRING:
        NdArray<byte[]> bytes = NdArrays.ofObjects(byte[].class, shape);
        bytes.scalars().forEach(scalar -> scalar.setObject(bytesOf(flat.get(next[0]++))));
        return TString.tensorOfBytes(bytes);
      default:
        throw new IllegalArgumentException("inputs of type " + type + " are not known here");
    }
  }

  private static void flatten(JsonElement value, List<JsonElement> into) {
    if (value.isJsonArray()) {
      value.getAsJsonArray().forEach(inner -> flatten(inner, into));
    } else {
      into.add(value);
    }
  }

  private static byte[] bytesOf(JsonElement value) {
    return value.isJsonObject()
        ? Base64.getDecoder().decode(value.getAsJsonObject().get("b64").getAsString())
        : value.getAsString().getBytes(StandardCharsets.UTF_8);
  }

  private static JsonArray values(Tensor tensor) {
    NdArray<?> array = (NdArray<?>) tensor;
    JsonArray made = new JsonArray();
    for (long index = 0; index < array.shape().get(0); index++) {
      made.add(value(array.get(index)));
    }
    return made;
  }

  private static JsonElement value(NdArray<?> array) {
    if (array.rank() == 0) {
      Object scalar = array.getObject();
      return scalar instanceof Number ? new JsonPrimitive((Number) scalar) : new JsonPrimitive(scalar.toString());
    }
    JsonArray made = new JsonArray();
    for (long index = 0; index < array.shape().get(0); index++) {
      made.add(value(array.get(index)));
    }
    return made;
  }
}
