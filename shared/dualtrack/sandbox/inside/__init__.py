"""What runs inside a sandbox: standard library only, no import of the rest of the platform, Python 3.9 or later."""
