"""Put core's types into headers, trailers and datagrams, and read them back, without I/O."""
