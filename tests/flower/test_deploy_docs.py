"""The commands of docs/deploy.md make keys and certificates that Flower accepts."""

import os
import re
import shutil
import subprocess
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")


def run(commands: str, folder: Path) -> None:
    subprocess.run(["bash", "-ec", commands], cwd=folder, check=True, capture_output=True)


def before(program: str) -> str:
    """Return the commands that precede a program of Flower in its code block."""
    [found] = re.findall(rf"```\n((?:(?!```).)*?){program} --(?:ssl|root)", PAGE, re.DOTALL)
    return found


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_certificate_is_for_sites_and_for_the_server_itself(tmp_path):
    """Flower's SuperExec speaks to its SuperLink by 127.0.0.1."""
    run(before("flower-superlink"), tmp_path)
    server, ca = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        for name in ("server.pem", "ca.crt")
    )
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert ip_address("127.0.0.1") in names.get_values_for_type(x509.IPAddress)
    address = re.search(r'\[superlink\.ours\]\naddress = "(.*):\d+"', PAGE)[1]
    assert address in names.get_values_for_type(x509.DNSName)
    assert not os.stat(tmp_path / "server.key").st_mode & 0o077


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_the_key_of_a_site_has_the_curve_that_flower_accepts(tmp_path):
    run(before("flower-supernode"), tmp_path)
    key = load_ssh_private_key((tmp_path / "site-a").read_bytes(), None)
    assert key.curve.name == "secp384r1"
    assert "register site-a.pub" in PAGE
    assert (tmp_path / "site-a.pub").is_file()
