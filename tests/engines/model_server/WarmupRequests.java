import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.protobuf.ByteString;
import com.google.protobuf.UnknownFieldSet;
import java.io.DataInputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.tensorflow.Result;
import org.tensorflow.SavedModelBundle;
import org.tensorflow.Tensor;
import org.tensorflow.ndarray.NdArray;
import org.tensorflow.ndarray.NdArrays;
import org.tensorflow.ndarray.Shape;
import org.tensorflow.proto.DataType;
import org.tensorflow.proto.TensorProto;
import org.tensorflow.types.TString;

/**
 * The requests that a model brings along, read as a server reads them: a TFRecord file of PredictionLogs.
 *
 * <p>The classes of PredictionLog are in no library of Maven Central; the numbers are those of its fields.
 */
final class WarmupRequests {
  private static final int PREDICT_LOG = 6;
  private static final int REQUEST = 1;
  private static final int MODEL_SPEC = 1;
  private static final int INPUTS = 2;
  private static final int SIGNATURE_NAME = 3;

  private WarmupRequests() {}

  /** Answers each request; tells signature, rows and outputs of each. */
  static JsonArray replay(Path savedModel, SavedModelBundle model) throws IOException {
    JsonArray told = new JsonArray();
    Path file = savedModel.resolve("assets.extra").resolve("tf_serving_warmup_requests");
    if (!Files.exists(file)) {
      return told;
    }
    try (DataInputStream records = new DataInputStream(Files.newInputStream(file))) {
      while (records.available() > 0) {
        told.add(answer(record(records), model));
      }
    }
    return told;
  }

  private static byte[] record(DataInputStream records) throws IOException {
    byte[] made = new byte[(int) Long.reverseBytes(records.readLong())];
    // The checksums of the length and of the record are for disks, not for this test.
    records.readInt();
    records.readFully(made);
    records.readInt();
    return made;
  }

  private static JsonObject answer(byte[] log, SavedModelBundle model) throws IOException {
    UnknownFieldSet request = inner(inner(UnknownFieldSet.parseFrom(log), PREDICT_LOG), REQUEST);
    ByteString name = bytes(inner(request, MODEL_SPEC), SIGNATURE_NAME);
    Map<String, Tensor> inputs = new HashMap<>();
    try {
      for (ByteString entry : request.getField(INPUTS).getLengthDelimitedList()) {
        UnknownFieldSet pair = UnknownFieldSet.parseFrom(entry);
        inputs.put(bytes(pair, 1).toStringUtf8(), tensor(TensorProto.parseFrom(bytes(pair, 2))));
      }
      JsonObject told = new JsonObject();
      told.addProperty("signature", name.toStringUtf8());
      told.addProperty("rows", inputs.values().iterator().next().shape().get(0));
      try (Result outputs = model.function(name.toStringUtf8()).call(inputs)) {
        told.add("predictions", RestJson.write(outputs).get("predictions"));
      }
      return told;
    } finally {
      inputs.values().forEach(Tensor::close);
    }
  }

  private static UnknownFieldSet inner(UnknownFieldSet message, int field) throws IOException {
    return UnknownFieldSet.parseFrom(bytes(message, field));
  }

  private static ByteString bytes(UnknownFieldSet message, int field) {
    return message.getField(field).getLengthDelimitedList().get(0);
  }

  private static Tensor tensor(TensorProto proto) {
    long[] sizes = proto.getTensorShape().getDimList().stream().mapToLong(each -> each.getSize()).toArray();
    if (proto.getDtype() == DataType.DT_STRING) {
      NdArray<byte[]> made = NdArrays.ofObjects(byte[].class, Shape.of(sizes));
      int[] next = {0};
      made.scalars().forEach(scalar -> scalar.setObject(
          proto.getStringVal(Math.min(next[0]++, proto.getStringValCount() - 1)).toByteArray()));
      return TString.tensorOfBytes(made);
    }
    throw new IllegalArgumentException("warm-up inputs of type " + proto.getDtype() + " are not known here");
  }
}
