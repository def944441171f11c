"""Imported by transformers as a whole; nothing of it is used."""
