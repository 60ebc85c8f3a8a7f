"""A small cluster for tests: the part of the Kubernetes API that the driver uses, over real HTTP and WebSockets on 127.0.0.1.

Its pods are sandboxes of this machine (bubblewrap), so that what runs in them is really isolated and limited. What it does not have is a
cluster: a scheduler, images, a network, admission. It says nothing of how a real one behaves.
"""
