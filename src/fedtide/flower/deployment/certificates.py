"""The certificates of a federation's server, and the keys of its sites."""

from __future__ import annotations

import ipaddress
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedtide.errors import InvalidInputError

_CA_DAYS, _DAYS = 3650, 365  # that certificates are valid


def write_certificates(folder: Path, address: str) -> None:
    """Write the keys and certificates of a server, PEM, which only their owner can read.

    ca.key and ca.crt are the authority of the federation, of which sites have ca.crt; they stay if
    they are there. server.key and server.pem are for the address to which sites connect, local.key
    and local.pem (signed by itself) for connections within the server.

    Raises:
        InvalidInputError: `address`: neither a name nor an IP address; `folder`: it has ca.crt
            without ca.key. A new authority would lock out the sites.
    """
    name = subject_name(address)
    key_file, certificate_file = folder / "ca.key", folder / "ca.crt"
    if key_file.exists():
        ca_key = load_pem_private_key(key_file.read_bytes(), None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        ca = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    elif certificate_file.exists():
        raise InvalidInputError(f"folder: bring {key_file} back, with which ca.crt was made")
    else:
        ca_key = ec.generate_private_key(ec.SECP384R1())
        ca = _sign("fedtide-ca", None, ca_key, ca_key, None)
        write_private(key_file, _pem(ca_key))
        write_private(certificate_file, ca.public_bytes(Encoding.PEM))
    local = [subject_name("localhost"), subject_name("127.0.0.1")]
    for stem, names, issuer in (("server", [name], ca), ("local", local, None)):
        key = ec.generate_private_key(ec.SECP384R1())
        signer = key if issuer is None else ca_key
        certificate = _sign(str(names[0].value), names, key, signer, issuer)
        write_private(folder / f"{stem}.key", _pem(key))
        write_private(folder / f"{stem}.pem", certificate.public_bytes(Encoding.PEM))


def subject_name(address: str) -> x509.DNSName | x509.IPAddress:
    """Return the name in a certificate for a server's name or IP address.

    >>> subject_name("fl.example.org"), subject_name("203.0.113.5")
    (<DNSName(value='fl.example.org')>, <IPAddress(value=203.0.113.5)>)
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        if re.fullmatch(r"[0-9A-Za-z*_.-]+", address):
            return x509.DNSName(address)
    raise InvalidInputError(
        f"address: {address!r} is no name or IP address; give one without https:// or a port"
    )


def write_site_key(folder: Path) -> None:
    """Write a key pair with which a SuperNode authenticates, `key` and `key.pub` (OpenSSH)."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_private(folder / "key", private)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / "key.pub").write_bytes(public + b"\n")


def write_private(file: Path, content: bytes) -> None:
    """Write a file that nobody else can read; one that exists keeps its owner and mode."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        opened.write(content)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _sign(
    subject: str,
    names: list[x509.DNSName | x509.IPAddress] | None,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
) -> x509.Certificate:
    """Return a certificate, signed by itself without an issuer; names=None: of an authority."""
    authority, now = names is None, datetime.now(UTC)
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])])
    public, signed_by = key.public_key(), signer.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own if issuer is None else issuer.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=_CA_DAYS if authority else _DAYS))
        .add_extension(x509.BasicConstraints(authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signed_by), False)
    )
    if names is None:
        # key_cert_sign and crl_sign
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    else:
        server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(server, critical=False)
    return builder.sign(signer, hashes.SHA384())
