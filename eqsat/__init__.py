"""eqsat: equality saturation for tensor programs, with GPU code generation."""

__version__ = "0.1.0"
