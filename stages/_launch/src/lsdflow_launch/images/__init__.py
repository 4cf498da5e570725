"""Stages in containers: pins, engines, mounts, settings for compose."""
