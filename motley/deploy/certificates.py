"""TLS: an authority of the federation's own, the broker's certificate, and, where asked for, agents' certificates."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from motley.core.errors import InputError

Key = ec.EllipticCurvePrivateKey
YEARS = dt.timedelta(days=3650)


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def request(key: Key, name: str) -> str:
    """Asks for a certificate, in PEM."""
    made = x509.CertificateSigningRequestBuilder().subject_name(_name(name)).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """Signs certificates of one federation."""

    def __init__(self, key: Key, certificate: x509.Certificate) -> None:
        self.key, self.certificate = key, certificate

    @classmethod
    def new(cls, name: str) -> Authority:
        key = new_key()
        now = dt.datetime.now(dt.UTC)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        made = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + YEARS)
            .add_extension(x509.BasicConstraints(True, 0), True)
            .add_extension(usage, True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        return cls(key, made)

    @classmethod
    def kept(cls, folder: Path, name: str) -> Authority:
        """The authority of a folder; a new one is made where there is none."""
        certificate, key = folder / "ca.pem", folder / "ca.key"
        if certificate.is_file() and key.is_file():
            loaded = serialization.load_pem_private_key(key.read_bytes(), None)
            if not isinstance(loaded, ec.EllipticCurvePrivateKey):
                raise InputError(f"{key} is not a key that Motley made.")
            return cls(loaded, x509.load_pem_x509_certificate(certificate.read_bytes()))
        made = cls.new(name)
        write_secret(key, key_pem(made.key))
        certificate.write_bytes(made.pem)
        return made

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def for_broker(self, hosts: list[str]) -> tuple[bytes, bytes]:
        """Certificate and key of a broker that is reached under these names."""
        key = new_key()
        names = x509.SubjectAlternativeName([_host(name) for name in dict.fromkeys(hosts)])
        usage = [ExtendedKeyUsageOID.SERVER_AUTH]
        return self._signed(key.public_key(), _name(hosts[0]), usage, names), key_pem(key)

    def for_agent(self, asked: str, name: str, days: float = 825.0) -> bytes:
        """A certificate for whoever asked; its name is the authority's to say."""
        try:
            found = x509.load_pem_x509_csr(asked.encode())
        except ValueError:
            raise InputError("What was sent is no request for a certificate.") from None
        public = found.public_key()
        if not found.is_signature_valid or not isinstance(public, ec.EllipticCurvePublicKey):
            raise InputError("The request for a certificate is not signed by its key.")
        return self._signed(public, _name(name), [ExtendedKeyUsageOID.CLIENT_AUTH], None, days)

    def _signed(
        self,
        public: ec.EllipticCurvePublicKey,
        name: x509.Name,
        usage: list[x509.ObjectIdentifier],
        names: x509.SubjectAlternativeName | None,
        days: float = 825.0,
    ) -> bytes:
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(False, None), True)
            .add_extension(x509.ExtendedKeyUsage(usage), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), False)
        )
        if names is not None:
            made = made.add_extension(names, False)
        return made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def client_key(folder: Path) -> Key:
    """The key of a certificate, made on the machine that uses it and kept there."""
    file = folder / "client.key"
    if not file.is_file():
        write_secret(file, key_pem(new_key()))
    loaded = serialization.load_pem_private_key(file.read_bytes(), None)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise InputError(f"{file} is not a key that Motley made.")
    return loaded


def client_files(folder: Path) -> tuple[Path, Path] | None:
    """Certificate and key with which a client shows who it is; None where it has none."""
    found = folder / "client.pem", folder / "client.key"
    return found if found[0].is_file() else None


def write_secret(path: Path, content: bytes) -> None:
    """A file that nobody else may read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    path.write_bytes(content)


def client_context(ca: bytes, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """TLS 1.3 towards a broker whose certificate this authority has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=ca.decode())
    if certificate is not None and key is not None:
        context.load_cert_chain(certificate, key)
    return context
