"""Renders the agent into KubeadmConfigs. Pure."""
