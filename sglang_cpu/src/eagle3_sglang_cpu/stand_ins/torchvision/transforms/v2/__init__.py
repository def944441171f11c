"""Imported by transformers; holds ``functional`` alone."""
