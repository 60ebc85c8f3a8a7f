"""Requests that leave the platform: to addresses that somebody else named."""
