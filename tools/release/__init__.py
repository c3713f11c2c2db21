"""Writes a release into a folder: artefacts, checksums, provenance and signatures; and verifies one."""
