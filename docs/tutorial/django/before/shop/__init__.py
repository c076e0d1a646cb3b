"""A shop: orders over HTTP, with Django."""
