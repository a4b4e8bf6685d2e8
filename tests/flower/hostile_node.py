"""A SuperNode that writes NaN as the time to live of its replies to requests to train.

The SuperLink accepts them, and fails whenever it is to deliver one.
"""

import math
import sys

import flwr.supernode.fleet_http_connection as connection
from flwr.supernode.cli.flower_supernode import flower_supernode

encode = connection.message_to_proto


def encode_falsely(message):
    encoded = encode(message)
    if message.metadata.message_type == "train":
        encoded.metadata.ttl = math.nan
    return encoded


if __name__ == "__main__":
    connection.message_to_proto = encode_falsely
    sys.argv[0] = "flower-supernode"
    flower_supernode()
