"""The serving side of HTTP: a middleware around any ASGI application."""
