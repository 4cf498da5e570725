"""See iohub/__init__.py."""

AxisMeta = None
