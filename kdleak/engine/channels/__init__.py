"""Channels: bindings that carry a debugger's text."""
