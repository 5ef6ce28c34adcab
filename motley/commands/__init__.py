"""The commands of `motley`. Each module imports what it needs inside its functions, so that help is quick."""
