"""The guide's first program: Titanic's passengers, feature columns, a LinearClassifier.

Run as a script, top to bottom. What differs here from the page's listings:

1. Imports; `tf.estimator`, gone since TensorFlow 2.16, is this package's, `tfe`.
2. The download of train.csv is a file generated in its place (`stand_ins.py`).
3. The formatter's line breaks and quotes, and printing on one line.
"""

# ruff: noqa: RET504 - lines of the listing

import tempfile

import tensorflow as tf

from tests.estimator.guide import stand_ins
from tfx_tpu_trainer import estimator as tfe


def train_input_fn():
    titanic_file = stand_ins.titanic_csv("train.csv")
    titanic = tf.data.experimental.make_csv_dataset(
        titanic_file, batch_size=32, label_name="survived"
    )
    titanic_batches = titanic.cache().repeat().shuffle(500).prefetch(tf.data.AUTOTUNE)
    return titanic_batches


age = tf.feature_column.numeric_column("age")
cls = tf.feature_column.categorical_column_with_vocabulary_list(
    "class", ["First", "Second", "Third"]
)
embark = tf.feature_column.categorical_column_with_hash_bucket("embark_town", 32)

model_dir = tempfile.mkdtemp()
model = tfe.LinearClassifier(model_dir=model_dir, feature_columns=[embark, cls, age], n_classes=2)

model = model.train(input_fn=train_input_fn, steps=100)

result = model.evaluate(train_input_fn, steps=10)

for key, value in result.items():
    print(key, ":", value)

for pred in model.predict(train_input_fn):
    for key, value in pred.items():
        print(key, ":", value)
    break
