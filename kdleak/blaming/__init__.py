"""Whom a hunt points at: through framework layers, with the driver and the owner of the tag."""
