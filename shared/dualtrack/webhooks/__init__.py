"""What a webhook's receiver gets, by the Standard Webhooks specification, version 1.0.0."""
