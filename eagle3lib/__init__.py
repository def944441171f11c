"""The EAGLE-3 investigation workbook's library. Start reading at ``docs/architecture.md``."""
