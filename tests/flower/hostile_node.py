"""A SuperNode whose replies to requests to train are hostile, as its first argument says.

`nan`: their time to live is NaN. The SuperLink accepts them, and fails whenever it is to deliver
one. `tree`: they announce 14,000 objects, which the SuperLink enters into its database at once.
"""

import hashlib
import math
import sys

import flwr.supernode.fleet_http_connection as connection
from flwr.supernode.cli.flower_supernode import flower_supernode

OBJECTS = 14_000
encode, request = connection.message_to_proto, connection.PushMessagesRequest


def encode_with_nan(message):
    encoded = encode(message)
    if message.metadata.message_type == "train":
        encoded.metadata.ttl = math.nan
    return encoded


def request_with_tree(messages_list, message_object_trees, **others):
    [message], [tree] = messages_list, message_object_trees
    if message.metadata.message_type == "train":
        for number in range(OBJECTS):
            unique = f"{message.metadata.message_id} {number}".encode()
            tree.children.add(object_id=hashlib.sha256(unique).hexdigest())
    return request(messages_list=messages_list, message_object_trees=[tree], **others)


if __name__ == "__main__":
    how = sys.argv.pop(1)
    if how == "nan":
        connection.message_to_proto = encode_with_nan
    else:
        connection.PushMessagesRequest = request_with_tree
    sys.argv[0] = "flower-supernode"
    flower_supernode()
