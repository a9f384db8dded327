"""Debugger text to model: pure functions."""
