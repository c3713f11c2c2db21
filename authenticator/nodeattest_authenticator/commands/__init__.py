"""The commands that people and systemd run: command lines, and what join, adopt, status and evidence do."""
