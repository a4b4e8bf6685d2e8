"""Registers the key of a site with the SuperLink, under a name that no other site has.

`flwr supernode register` accepts any number of keys under one name, and FedTide takes the name that
the operator gave as the client's identity.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fedtide.errors import InvalidInputError, printable
from fedtide.flower._flwr import list_registered_names
from fedtide.flower.protocol import LONGEST_NAME, is_name


def register_site(key: Path, name: str, superlink: str) -> str:
    """Register a site's public key and return Flower's output.

    Args:
        key: the file of the public key.
        name: of the site; the strategy knows it as a client of that name.
        superlink: the name of a connection in Flower's config.toml.

    Raises:
        InvalidInputError: `key`: Flower refuses it; `name`: it is taken or invalid; `superlink`: it
            cannot be asked which names are taken.
    """
    if not is_name(name):
        raise InvalidInputError(
            f"name: {printable(name, 60)!r} is empty, too long, or not printable; give at most "
            f"{LONGEST_NAME} characters"
        )
    if nodes := list_registered_names(superlink).get(name):
        remove = "; ".join(f"flwr supernode unregister {node} {superlink}" for node in nodes)
        raise InvalidInputError(
            f"name: {name!r} is taken; choose another, or remove the former key first ({remove})"
        )
    flwr = str(Path(sys.executable).parent / "flwr")
    command = [flwr, "supernode", "register", str(key), superlink, "--name", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip()
    if done.returncode:
        raise InvalidInputError(f"key: Flower refuses {key}: {said}")
    return said
