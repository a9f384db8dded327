"""Engines: what executes debugger operations on a target."""
