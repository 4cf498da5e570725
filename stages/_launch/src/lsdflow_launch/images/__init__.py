"""Stages in containers: pins, engines, what is mounted, settings for compose."""
