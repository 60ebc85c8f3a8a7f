"""The way out of a sandbox: a proxy that knows what may be reached and puts secrets in on the way."""
