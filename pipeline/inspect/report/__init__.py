"""A run as one HTML page: read the tables once, fetch a few pictures, draw, write."""

from .build import Report, write_report

__all__ = ["Report", "write_report"]
