"""Objects: the store port and its adapters, content-addressed blobs, workspaces."""
