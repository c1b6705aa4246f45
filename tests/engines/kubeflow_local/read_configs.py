"""`python read_configs.py < CONFIGS`: reads pods' configs as the newest kfp-kubernetes knows them.

Writes them out again; a field that it does not know is an error.
"""

import json
import sys

from google.protobuf import json_format
from kfp.kubernetes import kubernetes_executor_config_pb2 as configs

json.dump(
    [
        json_format.MessageToDict(json_format.ParseDict(each, configs.KubernetesExecutorConfig()))
        for each in json.load(sys.stdin)
    ],
    sys.stdout,
)
