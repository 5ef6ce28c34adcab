"""Motley: federated learning where clients are nothing alike."""

__version__ = "0.1.0"
