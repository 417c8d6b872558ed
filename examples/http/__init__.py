"""A greeting service over HTTP, to see what a service changes to use evenly."""
