"""The papers' tables and figures, measured again: declarative files, an engine that runs what is missing, tables."""
