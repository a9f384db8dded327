"""Mutations and adversarial texts against every parser of debugger text."""
