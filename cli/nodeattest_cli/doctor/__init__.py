"""nodeattest doctor: looks at an installation in both clusters."""
