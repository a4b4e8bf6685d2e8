"""Certificates and keys for a federation on one machine, as `openssl` and `ssh-keygen` make them.

Only for demos and tests: in a real federation, an operator runs the certificate authority, and each
site makes its own key (see docs/deploy.md).
"""

from __future__ import annotations

import datetime
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 2


def make_certificates(folder: Path) -> None:
    """Write ca.crt, server.pem and server.key, for 127.0.0.1 and localhost, into the folder."""
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedtide demo CA")])
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    ca = _certificate(ca_name, ca_key.public_key(), ca_name)
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    ca = ca.add_extension(_CA_USAGE, critical=True)
    server = _certificate(server_name, server_key.public_key(), ca_name)
    hosts = [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
    server = server.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    server = server.add_extension(usage, critical=False)
    for name, certificate in (("ca.crt", ca), ("server.pem", server)):
        signed = certificate.sign(ca_key, hashes.SHA384())
        (folder / name).write_bytes(signed.public_bytes(Encoding.PEM))
    _write_private(folder / "server.key", server_key, PrivateFormat.PKCS8)


def make_node_key(path: Path) -> None:
    """Write a node's private key to `path`, and its public key next to it with the suffix .pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")


_CA_USAGE = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _certificate(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
    return builder.not_valid_after(now + datetime.timedelta(days=_DAYS))


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
